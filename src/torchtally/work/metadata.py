"""Operators that move no data: allocation, views made in place, questions about a tensor, sleep.

Most views need no rule: a result in storage that came in is one, whatever the operator's name.
"""

from torchtally.trace import Call
from torchtally.trace.sleep import SLEEP
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, rule

ALLOCATIONS = (
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ resize"
    " resize_as_ resize_as _resize_output_ _resize_output set_ set set_data empty_quantized"
    " _empty_affine_quantized _empty_per_channel_affine_quantized sparse_resize_"
    " _cudnn_init_dropout_state _make_dep_token"
)
VIEWS = (
    "alias _unsafe_view _reshape_alias view view_as view_as_real view_as_complex as_strided"
    " detach detach_ lift lift_fresh t t_ numpy_T transpose transpose_ permute squeeze squeeze_"
    " unsqueeze unsqueeze_ expand expand_as broadcast_to broadcast_tensors select slice split"
    " split_with_sizes unsafe_split unsafe_split_with_sizes unsafe_chunk chunk tensor_split"
    " unbind unfold diagonal linalg_diagonal narrow movedim moveaxis swapaxes swapaxes_ swapdims"
    " swapdims_ as_strided_ atleast_1d atleast_2d atleast_3d hsplit vsplit dsplit mT mH matrix_H"
    " adjoint real imag conj _conj _neg_view positive requires_grad_ data unflatten_dense_tensors"
    " _fw_primal _make_dual _unpack_dual values indices _values _indices"
    " crow_indices col_indices ccol_indices row_indices slice_inverse"
    " _mkldnn_reshape _mkldnn_transpose"
)
QUESTIONS = (
    "_local_scalar_dense item is_same_size is_nonzero is_pinned is_contiguous is_complex"
    " is_floating_point is_signed is_conj is_neg is_inference is_leaf is_set_to is_coalesced"
    " is_distributed _is_zerotensor _has_same_storage_numel _has_compatible_shallow_copy_type"
    " _debug_has_internal_overlap size stride numel dim storage_offset sym_size sym_stride"
    " sym_numel sym_storage_offset sym_is_contiguous get_device output_nr _version retain_grad"
    " retains_grad _shape_as_tensor result_type can_cast promote_types cudnn_is_acceptable"
    " _use_cudnn_rnn_flatten_weight _use_cudnn_ctc_loss _use_miopen_ctc_loss _fused_sdp_choice"
    " _assert_async _assert_scalar _assert_tensor_metadata _functional_assert_async"
    " _functional_assert_scalar sym_constrain_range sym_constrain_range_for_size"
    " _functional_sym_constrain_range _functional_sym_constrain_range_for_size"
    " _linalg_check_errors _print record_stream _pin_memory pin_memory _nnpack_available"
    " _cufft_get_plan_cache_size _cufft_get_plan_cache_max_size _cufft_set_plan_cache_max_size"
    " _cufft_clear_plan_cache sparse_dim dense_dim _dimI _dimV _nnz qscheme q_scale q_zero_point"
    " _coalesced_ _backward is_vulkan_available _propagate_xla_data"
)

LABELS = (
    "profiler._record_function_enter profiler._record_function_enter_new"
    " profiler._record_function_exit _c10d_functional.wait_tensor"
)


@rule(f"{ALLOCATIONS} {VIEWS} {QUESTIONS} {LABELS}", kind=Kind.METADATA)
def no_cost(call: Call) -> Cost:
    """No FLOPs and no bytes, whatever the tensors' sizes."""
    return Cost()


@rule(SLEEP, kind=Kind.SLEEP)
def no_work(call: Call) -> Cost:
    """The host's time alone (`timing/schedule.py`)."""
    return Cost()
