"""Which keys each document has. What a key means and its unit stand in vocabulary.toml.

    part("script chip parameters?", time=maybe(part("step_s kernel_s")))

is an object with a text `script`, a text `chip`, a count that may be null, and an object that may
be. A name with a star may be absent.
"""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Shape:
    """What a key holds."""

    is_null: bool = False
    """May be null."""
    is_absent: bool = False
    """May be absent."""


@dataclass(frozen=True, slots=True)
class Leaf(Shape):
    """A value in the unit of its key."""


@dataclass(frozen=True, slots=True)
class PartShape(Shape):
    """An object with these keys."""

    fields: dict[str, Shape] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listed(Shape):
    """Any number of them, in order."""

    item: Shape = field(default_factory=Shape)


@dataclass(frozen=True, slots=True)
class Mapped(Shape):
    """Keys that are facts themselves: names of dtypes, chips, categories, tables."""

    item: Shape = field(default_factory=Shape)


@dataclass(frozen=True, slots=True)
class Plain(Shape):
    """A value in the unit of this key of the vocabulary, whatever its own is called."""

    like: str = ""


@dataclass(frozen=True, slots=True)
class Row(Shape):
    """A row of a table: any columns of the vocabulary, each of which may be null."""


@dataclass(frozen=True, slots=True)
class Foreign(Shape):
    """An object in a format of its own, which has its own number."""


@dataclass(frozen=True, slots=True)
class DocumentShape:
    """A kind of document."""

    summary: str
    """Which command prints it."""
    shape: PartShape


S = TypeVar("S", bound=Shape)


def part(names: str = "", /, **parts: Shape) -> PartShape:
    """An object: the names of its values, and its parts."""
    fields: dict[str, Shape] = {}
    for name in names.split():
        key = name.rstrip("?*")
        fields[key] = Leaf(is_null="?" in name, is_absent="*" in name)
    return PartShape(fields=fields | parts)


def join(*shapes: PartShape) -> PartShape:
    """The keys of all of them."""
    return PartShape(fields={key: shape for each in shapes for key, shape in each.fields.items()})


def list_of(names: str = "", /, **parts: Shape) -> Listed:
    return Listed(item=part(names, **parts))


def map_of(names: str = "", /, **parts: Shape) -> Mapped:
    return Mapped(item=part(names, **parts))


def maybe(shape: S) -> S:
    """The same, or null."""
    return replace(shape, is_null=True)


def sometimes(shape: S) -> S:
    """The same, or absent."""
    return replace(shape, is_absent=True)


def has_rows(shape: Shape) -> bool:
    """Whether rows of tables are in it."""
    if isinstance(shape, PartShape):
        return any(map(has_rows, shape.fields.values()))
    return isinstance(shape, Row) or (isinstance(shape, Listed | Mapped) and has_rows(shape.item))


PLACE = "file? line? source?"
MEMORY = "peak_allocated_bytes? peak_reserved_bytes?"
PHASES = "flops_forward flops_backward flops_recompute flops_optimizer flops_evaluation"
MOVED = "bytes_read bytes_written"
HELD = "bytes_saved bytes_allocated"
TIMING = "seconds? kernel_s? bound?"
PAIR = "measured_bytes predicted_bytes off_bytes ratio?"
SHARES = "flops_share? seconds_share?"
UNKNOWN = "operator count reason"
CONVENTION = part("attention text")
COVERAGE = part("counted free", uncounted=list_of(UNKNOWN))
QUANTITY = "name value unit note"
UTILISATION = "key name basis unit amount per_s? peak_per_s? peak peak_share?"
PASSES = part(f"count flops {MOVED} seconds?* kernel_s?*", utilisation=maybe(part(UTILISATION)))
BATCH = maybe(part("per_step operator file? line?"))
LINK = maybe(part("name bytes_per_s_per_direction? chip_count? has_multicast mesh latency_s?"))
CONVERSION = "value? error? spacing? outcome bits scale? scale_bits?"
TENSOR = """dtype offset is_contiguous elements bytes storage_bytes shape strides contiguous_strides
    storage storage_elements_used formula"""

TABLE = part(
    "title note rows_left_out rows_filtered_out",
    columns=list_of("name unit"),
    rows=Listed(item=Row()),
    totals=Row(),
)
TABLES = Mapped(item=TABLE)

LIMITS = list_of("limit quantity relation amount unit value? doubt where holds?")

RUN = part(
    """script chip torch_version steps per parameters? own_parameters? trained_parameters?
    is_rank_share""",
    convention=CONVENTION,
    ending=part("kind message"),
    run=part(
        "steps models flops seconds? was_stopped steps_differ",
        reported_share=part(SHARES),
        evaluation_share=part(SHARES),
    ),
    host_state=maybe(part(
        "elements whole_elements parameter_bytes gradient_bytes optimizer_bytes"
    )),
    diagnoses=list_of(f"{PLACE} rule cause remedy cost_bytes"),
    totals=part(f"flops {PHASES} flops_matmul {MOVED}"),
    memory=part(
        """device peak_allocated_bytes peak_tick peak_reserved_bytes context_bytes context_trust
        communicators communicator_bytes communicator_trust context_low_bytes context_high_bytes
        trial_bytes capacity_bytes? fits? claim refused_requests""",
        at_peak=Mapped(item=Plain(like="bytes")),
        workspaces=list_of("name bytes trust? source?"),
        out_of_memory=maybe(part(
            f"""requested_bytes allocated_bytes reserved_bytes free_bytes {PLACE} module
            message""",
            holders=Listed(item=Row()),
        )),
    ),
    time=maybe(part(
        "chip step_s? kernel_s low_s? high_s? basis? rates_of",
        by_bound=map_of(f"seconds kernel_s count flops {MOVED}"),
        calibrated=maybe(part("device date torch_version calibrated_share?")),
        slow_host=maybe(part("host issue_s step_s idle_share")),
        untimed=list_of(UNKNOWN),
        odd_sizes=list_of(f"size next_size saved_s {PLACE}"),
    )),
    utilisation=list_of(UTILISATION),
    generation=maybe(part(
        """count sequences prefill_tokens decoded drafts first_token_s? token_s? first_s? last_s?
        tokens_per_s? cache_bytes cache_bytes_per_token""",
        prefill=PASSES,
        decode=PASSES,
    )),
    throughput=maybe(part(
        "steps_per_s? tokens_per_s? samples_per_s? data_parallel_ranks?",
        token_batch=BATCH,
        sample_batch=BATCH,
    )),
    lines_below=part(PLACE),
    lines=list_of(f"{PLACE} {PHASES} {MOVED} {HELD} count views copies {TIMING}"),
    modules=list_of(
        f"module class flops_with_children {PHASES} {MOVED} {HELD} count {TIMING} "
        "seconds_with_children?"
    ),
    ops=list_of(f"operator count flops {MOVED} {TIMING}"),
    coverage=COVERAGE,
    placeholders=list_of(f"{PLACE} operator given use count"),
    caveats=Listed(item=Plain(like="text")),
    notes=list_of("text count"),
    effects=list_of(f"kind name {PLACE} count bytes placeholder_bytes"),
    loading=list_of(f"{PLACE} workers batch_s"),
    script_work=maybe(part(f"{PLACE} script_s")),
    facts=Mapped(item=Plain(like="text")),
    changes=sometimes(list_of(
        "change what_ifs allocator_settings arguments? peak_reserved_bytes saved_bytes fits"
    )),
    timed_changes=sometimes(list_of("what_if step_s saved_s peak_reserved_bytes")),
    unchanged=sometimes(part("step_s peak_reserved_bytes peak_allocated_bytes")),
    limits=sometimes(LIMITS),
    measured=sometimes(part(
        """made_by file has_shapes has_lines has_memory device_s step_s computing_s exposed_s
        waiting_s kernel_s counted_s timed_s roofline_s""",
        lost=list_of("reason kernels seconds"),
        idle_causes_s=Mapped(item=Plain(like="seconds")),
        uncounted=list_of("operator kernel_s"),
    )),
)  # fmt: skip

MODEL = part(
    """model chip torch_version inputs how is_training parameters trained_parameters flops_forward
    flops_backward flops_recompute bytes_saved model_flops step_s? peak_allocated_bytes
    peak_reserved_bytes context_bytes capacity_bytes? fits?""",
    convention=CONVENTION,
    modules=Listed(item=join(
        part("""module class parameters trained_parameters own_parameters flops_forward
             flops_backward flops_recompute bytes_saved seconds?"""),
        part(module_outputs=Listed(item=Plain(like="shape"))),
    )),
    outside=part("flops_forward flops_backward flops_recompute bytes_saved seconds?"),
    coverage=COVERAGE,
    untimed=list_of(UNKNOWN),
    notes=list_of("text count"),
)  # fmt: skip

FIT = part(
    "vary steps",
    caveats=Listed(item=Plain(like="text")),
    chips=list_of(
        """chip total_memory_bytes context_bytes margin_bytes capacity_bytes largest? too_large?
        gave_up is_monotone computed_from?""",
        tried=list_of("value fits peak_allocated_bytes peak_reserved_bytes"),
    ),
    computations=list_of("simulated simulated_at checked_at asked"),
    runs=list_of("simulated value failure steps folded wall_s"),
)

CHIPS = part(
    chips=list_of(
        """name aliases families driver_names vendor architecture compute_capability?
        multiprocessors? boost_clock_hz? tensor_clock_hz? l2_cache_bytes? memory_bytes
        is_memory_estimated memory_label_bytes? program_memory_bytes? memory_type
        memory_bandwidth_bytes_per_s? achieved_bandwidth_bytes_per_s? tdp_watts? usd_per_hour?
        price_source? price_as_of? price_note? source note""",
        dense_peaks_flop_per_s=Mapped(item=Plain(like="flop_per_s")),
        peaks=map_of(
            "flop_per_s source sparse_flop_per_s? note achieved_flop_per_s? achieved_source"
        ),
        link=LINK,
        host_link=LINK,
        node=maybe(part("chip_count name source network_cards? cpu", network=LINK)),
        offers=list_of("usd_per_hour price_source price_as_of price_note"),
        sources=Mapped(item=Plain(like="source")),
        measured_as=maybe(part("chip reason")),
        memory_as=maybe(part("chip reason")),
        inherited=Mapped(item=Plain(like="chip")),
        origins=list_of("name chip basis"),
    )
)

ANSWER = part(
    "question answer assumptions unknown",
    figures=list_of(QUANTITY),
    tables=Listed(item=TABLE),
    working=list_of(f"{QUANTITY} formula source", terms=Mapped(item=Plain(like="number"))),
)

AUDIT = part(
    "verdict chip tolerance reserved_tolerance failure disagreements",
    peak_allocated=part(PAIR),
    peak_reserved=part(PAIR),
    by_step=list_of(peak_allocated=part(PAIR), peak_reserved=part(PAIR)),
    held=map_of(PAIR),
    lines=list_of(f"{PLACE} {PAIR}"),
    measured=Foreign(),
    predicted=Foreign(),
)

FORMATS = part(
    formats=list_of(
        """name torch_name? bits_per_number bits bias? largest? smallest_normal? smallest_subnormal?
        spacing_at_one? block_size? scale_width? use note source computed_by"""
    ),
    values=list_of("text", becomes=map_of(CONVERSION)),
)

WATCH = part(
    f"""kind file?* tolerance* log* text* step?* rank?* step_s?* step_s_from?* tokens_per_s?* mfu?*
    logged_mfu?* {" ".join(f"{name}*" for name in MEMORY.split())} idle_share?* deviation?*
    is_memory?* slow?* waited_s?* usual_s?* observed* first_step?* last_step?* least_step_s?*
    most_step_s?* late?* memory_deviation?*""",
    predicted=sometimes(maybe(
        part(f"file?* chip?* ranks?* tokens?* mfu_convention?* step_s? tokens_per_s? mfu? {MEMORY}")
    )),
)  # fmt: skip


@cache
def documents() -> dict[str, DocumentShape]:
    """Shapes by the names of `VERSIONS`."""
    return {
        "run": DocumentShape("`tally run`, `tally show`, `tally explain`: the page of a run", RUN),
        "view": DocumentShape(
            "`tally show --by`, `tally explain --by` and tables of several chips",
            join(part("script chip per", convention=CONVENTION), TABLE),
        ),
        "table": DocumentShape("`tally diff --by`, `tally plan --models`: one table", TABLE),
        "diff": DocumentShape("`tally diff`", part("title", tables=TABLES)),
        "answer": DocumentShape("`tally plan`", ANSWER),
        "chips": DocumentShape("`tally gpus`", CHIPS),
        "fit": DocumentShape("`tally fit`", FIT),
        "model": DocumentShape("`tally summary`", MODEL),
        "audit": DocumentShape("`tally audit`", AUDIT),
        "measurements": DocumentShape(
            "`tally audit -o`", part(measured=Foreign(), predicted=Foreign())
        ),
        "against": DocumentShape(
            "`tally explain --against`, `--script`",
            part("measured_s predicted_s joined_share", tables=TABLES),
        ),
        "snapshot": DocumentShape(
            "`tally explain` of a memory snapshot",
            part("peak_allocated_bytes peak_reserved_bytes earlier_bytes", tables=TABLES),
        ),
        "bench": DocumentShape("`tally bench`", part("title", tables=TABLES)),
        "budget": DocumentShape(
            "`tally budget`", part("file", budgets=TABLE, histories=Listed(item=TABLE))
        ),
        "sweep": DocumentShape(
            "`tally sweep`",
            part(
                "config varying ranked_by",
                runs=list_of(
                    """name status has_risen? steps first_loss? final_loss? best_loss?
                    validation_loss? best_validation_loss? wall_s? exit_code? message""",
                    values=Mapped(item=Plain(like="value", is_null=True)),
                ),
            ),
        ),
        "tokens": DocumentShape(
            "`tally data show`",
            part(
                files=list_of(
                    """file format dtype tokens token_bytes offset_bytes documents? tokens_looked_at
                    least_token? greatest_token?"""
                )
            ),
        ),
        "continuation": DocumentShape(
            "`tally sample`", part("source step? seed prompt_tokens token_ids text")
        ),
        "formats": DocumentShape("`tally dtypes`", FORMATS),
        "tensor": DocumentShape(
            "`tally tensor`",
            part(
                "expression places? shares_storage_with",
                storage_values=maybe(Listed(item=Plain(like="value"))),
                result=part(TENSOR),
                operations=list_of(f"code expression origin {TENSOR}"),
            ),
        ),
        "watch": DocumentShape("`tally watch`: each line", WATCH),
        "limits": DocumentShape("limits by themselves, in a notebook", part(limits=LIMITS)),
        "page": DocumentShape("reports of sentences and tables", part("title", tables=TABLES)),
    }
