"""Number formats: what their bits mean, and what numbers become in them, computed exactly.

    convert(FORMATS["bf16"], [real_of("0.1")])      0.10009765625, with its bits and its error

No torch: rounding is done with whole numbers, and the tests hold it to torch's own dtypes.
"""

from torchtally.number_formats.catalogue import FORMATS, NumberFormat, choose_formats
from torchtally.number_formats.conversion import Conversion, convert
from torchtally.number_formats.layout import FloatLayout, IntegerLayout, Real, RoundingOutcome
from torchtally.number_formats.real import real_of
