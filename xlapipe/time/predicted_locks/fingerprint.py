"""XLA's key of an instruction in autotune results: CityHash128 of its canonical text."""

_MASK = (1 << 64) - 1
_K0, _K1 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273
_MULTIPLIER = 0x9DDFEA08EB382D69
_SHORTEST = 144


def fingerprint(text: str) -> str | None:
    """`hlo_fingerprint` of a canonical text, as XLA writes it: the high half, then the low half.

    Algorithm: Pike and Alakuijala, CityHash 1.0.3, `CityHash128` for 144 bytes and more.
    """
    data = text.encode()
    if len(data) < _SHORTEST:
        return None
    state = _State(data)
    left = len(data) - 16
    while left >= 128:
        state.mix()
        state.mix()
        left -= 128
    low, high = state.end(left)
    return f"{high:016x}{low:016x}"


class _State:
    """The 56 bytes of state, named as in the source."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 16
        self._x, self._y = self._word(0), (self._word(8) + _K0) & _MASK
        self._z = (len(data) - 16) * _K1 & _MASK
        v = (_rotated(self._y ^ _K1, 49) * _K1 + self._word(16)) & _MASK
        self._v = v, (_rotated(v, 42) * _K1 + self._word(24)) & _MASK
        self._w = (
            (_rotated(self._y + self._z, 35) * _K1 + self._x) & _MASK,
            _rotated(self._x + self._word(104), 53) * _K1 & _MASK,
        )

    def _word(self, at: int) -> int:
        return int.from_bytes(self._data[at : at + 8], "little")

    def _weak(self, at: int, a: int, b: int) -> tuple[int, int]:
        first, second, third, last = (self._word(at + step) for step in (0, 8, 16, 24))
        a = (a + first) & _MASK
        b = _rotated(b + a + last, 21)
        end = (a + second + third) & _MASK
        return (end + last) & _MASK, (b + _rotated(end, 44) + a) & _MASK

    def mix(self) -> None:
        """Hash the next 64 bytes."""
        at, v, w = self._at, self._v, self._w
        x = _rotated(self._x + self._y + v[0] + self._word(at + 8), 37) * _K1 & _MASK
        y = _rotated(self._y + v[1] + self._word(at + 48), 42) * _K1 & _MASK
        x ^= w[1]
        y = (y + v[0] + self._word(at + 40)) & _MASK
        z = _rotated(self._z + w[0], 33) * _K1 & _MASK
        self._v = self._weak(at, v[1] * _K1, x + w[0])
        self._w = self._weak(at + 32, z + w[1], y + self._word(at + 16))
        self._x, self._y, self._z = z, y, x
        self._at += 64

    def end(self, left: int) -> tuple[int, int]:
        """Hash the last `left` bytes, from the end backwards; return the low and the high half."""
        (v0, v1), (w0, w1) = self._v, self._w
        x = (self._x + _rotated(v0 + self._z, 49) * _K0) & _MASK
        y = (self._y * _K0 + _rotated(w1, 37)) & _MASK
        z = (self._z * _K0 + _rotated(w0, 27)) & _MASK
        w0, v0 = w0 * 9 & _MASK, v0 * _K0 & _MASK
        done = 0
        while done < left:
            done += 32
            at = self._at + left - done
            y = (_rotated(x + y, 42) * _K0 + v1) & _MASK
            w0 = (w0 + self._word(at + 16)) & _MASK
            x = (x * _K0 + w0) & _MASK
            z = (z + w1 + self._word(at)) & _MASK
            w1 = (w1 + v0) & _MASK
            v0, v1 = self._weak(at, v0 + z, v1)
            v0 = v0 * _K0 & _MASK
        x, y = _folded(x, v0), _folded((y + z) & _MASK, w0)
        low = (_folded((x + v1) & _MASK, w1) + y) & _MASK
        return low, _folded((x + w1) & _MASK, (y + v1) & _MASK)


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value >> bits | value << (64 - bits)) & _MASK


def _folded(low: int, high: int) -> int:
    a = (low ^ high) * _MULTIPLIER & _MASK
    b = ((a ^ a >> 47) ^ high) * _MULTIPLIER & _MASK
    return (b ^ b >> 47) * _MULTIPLIER & _MASK
