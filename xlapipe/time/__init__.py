"""How long a step takes, as pure functions of a plan and a device, without jax.

`cost` states what a step must cost: bytes that each kernel touches, multiply-adds, and the least
time. `predict` predicts its time with a calibration. `profiles` joins the kernels of a GPU profile
with a plan, and `predicted_locks` predicts what a device's tuner would choose.
"""
