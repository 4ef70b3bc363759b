"""FLOPs by hand. A multiply and an add are two.

B: batch.  T: tokens.  S: sequence.  d: width.  V: vocabulary.  L: layers.
"""


def linear(T: int, n: int, m: int) -> int:
    """Forward: every weight of an (n, m) matrix meets every token once."""
    return 2 * T * n * m


def conv(B: int, side: int, n: int, m: int, k: int) -> int:
    """Forward: `side` x `side` results of m channels, each of k x k x n weights."""
    return 2 * B * side * side * m * n * k * k


def trained(*layers: int, first: int = 0) -> int:
    """Forward and backward: three products a layer; no gradient of the `first` one's input."""
    return 2 * first + 3 * sum(layers)


def attention(B: int, S: int, d: int, L: int) -> int:
    """Forward: queries by keys, weights by values."""
    return L * 4 * B * S * S * d


def fused_attention(B: int, S: int, d: int, L: int) -> int:
    """Forward and backward: two products, then five, with the scores recomputed."""
    return attention(B, S, d, L) * 7 // 2
