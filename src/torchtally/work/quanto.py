"""optimum-quanto's operators (optimum/quanto/library), of quantised weights and caches."""

from torchtally.work.rule import Kind, PerElement, rules

rules(
    Kind.ELEMENTWISE,
    # Divided by a scale, shifted, rounded, two bounds.
    PerElement("quanto.quantize_affine", 5),
    PerElement("quanto.quantize_symmetric", 4),
    # A mask and a shift.
    PerElement("quanto.unpack", 2),
)
