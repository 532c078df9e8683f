"""The kernels' operations on integers, on those of Python."""


class Integers:
    """`layout.IntegerOps` on Python integers."""

    def plus(self, first: int, *rest: int) -> int:
        return first + sum(rest)

    def minus(self, a: int, b: int) -> int:
        return a - b

    def times(self, a: int, b: int) -> int:
        return a * b

    def right(self, a: int, places: int) -> int:
        return a >> places

    def bits(self, a: int, mask: int) -> int:
        return a & mask

    def less(self, a: int, b: int) -> bool:
        return a < b

    def pick(self, condition: bool, a: int, b: int) -> int:
        return a if condition else b
