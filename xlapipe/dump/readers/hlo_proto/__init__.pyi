from xlapipe.dump.readers.hlo_proto.xlapipe_hlo_pb2 import *  # noqa: F403
from xlapipe.dump.readers.hlo_proto.xlapipe_xplane_pb2 import *  # noqa: F403
