"""The block for models of any size: weights are multiplied with a vector in shared memory.

Four warps fetch. A computing warp takes a chunk, of 4 rows and at most 1,024 columns, and
multiplies it with the vector, which all warps read from shared memory (`products`). Its threads
publish the block's values, and poll those of all blocks (`vectors`).
"""
