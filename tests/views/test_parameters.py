"""How many parameters a trace shows."""

from msgspec import structs

from tests.builders import TraceBuilder, factory_call, mm_call
from torchtally.ledger import account
from torchtally.trace import Phase, Role
from torchtally.views.parameters import parameters_of


def test_parameters_are_counted_in_elements() -> None:
    builder = TraceBuilder()
    weight = builder.run(factory_call(10, 10, dtype="bfloat16"), role=Role.PARAMETER)
    builder.run(factory_call(7), role=Role.PARAMETER)
    builder.run(mm_call(10, 10, 10), (weight, weight), phase=Phase.BACKWARD)
    builder.end_step()
    counted = parameters_of(account(builder.build()))
    assert counted is not None
    assert counted.elements == 107


def test_a_parameter_no_operator_touched_makes_the_number_unknown() -> None:
    builder = TraceBuilder()
    builder.allocate(1024, Role.PARAMETER)
    builder.run(factory_call(7), role=Role.PARAMETER)
    builder.end_step()
    assert parameters_of(account(builder.build())) is None


def test_a_dtype_that_is_not_known_makes_the_number_unknown() -> None:
    """As of a file from elsewhere."""
    builder = TraceBuilder()
    builder.run(factory_call(7), role=Role.PARAMETER)
    builder.end_step()
    trace = builder.build()
    calls = tuple(
        structs.replace(
            call, outputs=tuple(structs.replace(spec, dtype="float7") for spec in call.outputs)
        )
        for call in trace.calls
    )
    assert parameters_of(account(structs.replace(trace, calls=calls))) is None
