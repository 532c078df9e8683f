"""`ir_pre_fusion.txt` and `ir_post_fusion.txt`: Inductor's IR as its scheduler prints it."""
