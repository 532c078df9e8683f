"""Minimal private copies of XLA's HloProto and the profiler's XSpace.

The classes are made at import, so that there is no generated code, which is bound to versions of
protobuf. In this folder, their descriptors and stubs are made by
`python -m grpc_tools.protoc -I. --descriptor_set_out=messages.binpb --pyi_out=. *.proto`.
"""

from importlib.resources import files

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def _messages() -> dict[str, object]:
    """The classes of all messages outside of others, by name."""
    pool = descriptor_pool.DescriptorPool()
    data = files(__name__).joinpath("messages.binpb").read_bytes()
    described = descriptor_pb2.FileDescriptorSet.FromString(data).file
    for file in described:
        pool.Add(file)
    classes = message_factory.GetMessageClassesForFiles([file.name for file in described], pool)
    return {name.rpartition(".")[2]: message for name, message in classes.items()}


_CLASSES = _messages()


def __getattr__(name: str) -> object:
    """The class of a message."""
    try:
        return _CLASSES[name]
    except KeyError:
        raise AttributeError(name) from None
