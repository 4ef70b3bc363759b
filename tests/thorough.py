"""Which tests `make test-all` alone runs, so that `make test` takes minutes, on two cores.

Of a test with many cases `make test` runs one in so many, the first among them. A test that is left
out as a whole repeats at length what a shorter one holds, or is one of a file's longest. Tests that
are named on the command line are all run, and so is every test of a room that is named: after a
change in `memory`, `pytest tests/memory`.
"""

from collections import Counter
from collections.abc import Sequence

import pytest

ONE_CASE_IN: dict[str, int] = {
    "tests/cli/test_chip_names.py::*": 3,
    "tests/cli/test_diff_commits.py::*": 3,
    "tests/cli/test_fit.py::*": 3,
    "tests/cli/test_fit.py::test_nothing_is_left_behind": 3,
    "tests/cli/test_mistakes.py::*": 4,
    "tests/cli/test_own_errors.py::*": 2,
    "tests/cli/test_pipelines.py::test_an_unmodified_pipeline_waits_as_the_closed_form_says": 3,
    "tests/cli/test_plan.py::*": 2,
    "tests/cli/test_plan_options.py::test_every_option_changes_the_answer_or_is_an_error": 12,
    "tests/cli/test_plan_options.py::test_what_an_answer_depends_on_is_not_refused": 12,
    "tests/cli/test_run.py::*": 2,
    "tests/cli/test_show.py::*": 2,
    "tests/cli/test_starts.py::*": 3,
    "tests/corpus/test_corpus.py::test_a_script_is_right_unless_it_is_known_not_to_be": 8,
    "tests/explain/test_damaged.py::*": 12,
    "tests/lecture/test_notebooks.py::test_a_page_prints_as_a_notebook_what_it_says": 12,
    "tests/memory/allocator/test_replay.py::*": 3,
    "tests/models/test_closed_forms.py::*": 3,
    "tests/models/test_counted.py::*": 4,
    "tests/models/test_counted.py::test_a_step_has_the_flops_that_the_class_has_on_the_host": 8,
    "tests/notebook/test_examples.py::test_a_notebook_shows_what_its_cells_show_now": 3,
    "tests/notebook/test_shown.py::*": 3,
    "tests/plan/consistency/test_adapters.py::*": 6,
    "tests/plan/consistency/test_adapters.py::test_all_linear_is_what_peft_takes": 4,
    "tests/plan/consistency/test_adapters.py::test_closed_forms_are_the_ledgers": 8,
    "tests/plan/consistency/test_adapters.py::test_hybrids_are_the_ledgers": 8,
    "tests/plan/consistency/test_adapters.py::test_magnitudes_are_the_ledgers": 3,
    "tests/plan/consistency/test_adapters.py::test_mixtures_are_the_ledgers": 3,
    "tests/plan/consistency/test_adapters.py::test_recomputed_layers_keep_their_inputs_alone": 3,
    "tests/plan/consistency/test_adapters.py::test_under_autocast": 4,
    "tests/plan/consistency/test_config_fields.py::*": 4,
    "tests/plan/consistency/test_deep_linear_traced.py::test_the_deep_linear_model": 3,
    "tests/plan/consistency/test_network.py::test_a_rank_sends_what_the_closed_forms_say": 3,
    "tests/plan/consistency/test_optimizers.py::test_the_state_of_an_optimizer": 3,
    "tests/plan/consistency/test_reference_models.py::*": 12,
    "tests/plan/consistency/test_seconds.py::test_a_plan_takes_as_long_as_a_run": 3,
    "tests/plan/parallel/test_published_layouts.py::*": 2,
    "tests/plan/test_config.py::*": 3,
    "tests/plan/test_hybrids.py::*": 3,
    "tests/real/test_cpu_profiler.py::*": 5,
    "tests/real/test_cpu_profiler.py::test_every_storage_lives_as_on_the_cpu": 3,
    "tests/real/test_generation.py::*": 4,
    "tests/real/test_generation.py::test_generation_ends_after_the_tokens_asked_for": 3,
    "tests/real/test_generation_phases.py::*": 3,
    "tests/real/test_torch_models.py::*": 2,
    "tests/real/test_transformers.py::*": 4,
    "tests/report/test_browser_page.py::*": 3,
    "tests/report/test_html.py::*": 3,
    "tests/report/test_text.py::*": 2,
    "tests/report/test_viewer.py::*": 3,
    "tests/report/test_viewer.py::test_every_page_fills_every_size_exactly": 3,
    "tests/runs/probe/test_folding.py::*": 3,
    "tests/steps/test_evaluation.py::*": 3,
    "tests/test_closed_forms.py::*": 4,
    "tests/test_docs.py::test_a_generated_part_that_is_stale_is_found": 9,
    "tests/test_layers.py::*": 2,
    "tests/test_random_trainings.py::*": 60,
    "tests/test_reading.py::test_any_text_is_a_number_or_refused": 3,
    "tests/tracer/test_by_hand.py::*": 3,
    "tests/tracer/test_recompute.py::*": 2,
    "tests/tracer/test_roles.py::*": 2,
    "tests/tracer/test_waits.py::*": 2,
    "tests/tracer/test_what_if_ranks.py::*": 3,
    "tests/train/checkpoints/test_full_disk.py::test_each_call_fails_once": 2,
    "tests/train/checkpoints/test_kills.py::*": 2,
    "tests/train/checkpoints/test_ranks.py::*": 2,
    "tests/train/models/test_huggingface.py::*": 3,
    "tests/train/models/test_quantised.py::*": 3,
    "tests/train/optimizers/test_equations.py::*": 3,
    "tests/train/ranks/test_failing.py::*": 2,
    "tests/train/ranks/test_parallel.py::test_any_number_of_ranks_trains_alike": 2,
    "tests/train/ranks/test_resume.py::test_another_number_of_ranks_goes_on": 4,
    "tests/train/ranks/test_resume.py::test_the_same_number_of_ranks_goes_on_bit_for_bit": 2,
    "tests/train/test_durable.py::*": 2,
    "tests/train/test_durable_callback.py::*": 2,
    "tests/train/test_footprint.py::*": 4,
    "tests/train/test_footprint.py::test_a_traced_step_holds_the_same": 4,
    "tests/train/test_lightning_callback.py::*": 3,
    "tests/train/test_loop.py::*": 3,
    "tests/train/test_loop.py::test_the_plan_is_what_a_trace_of_the_training_holds": 3,
    "tests/train/test_one_file.py::test_its_losses_are_those_of_the_training": 4,
    "tests/train/test_resume.py::test_killed_after_any_step_and_resumed_it_is_the_same": 10,
    "tests/train/test_rounding.py::*": 3,
    "tests/train/test_rounding.py::test_master_weights_are_float32_training": 3,
    "tests/train/test_signals.py::test_a_second_signal_ends_it_at_once": 3,
    "tests/train/test_signals.py::test_sigusr1_saves_and_goes_on": 3,
    "tests/train/test_signals.py::test_stopped_it_saves_and_can_go_on": 6,
    "tests/train/test_step.py::*": 2,
    "tests/train/test_what_was_trained.py::test_a_changed_key_changes_the_bits_or_is_refused": 16,
    "tests/truth/test_collector.py::*": 4,
    "tests/truth/test_times.py::test_a_real_h100s_steps": 3,
    "tests/truth/test_collector.py::test_a_case_runs_on_the_host": 3,
    "tests/truth/test_collector.py::test_a_case_runs_on_the_virtual_gpu": 3,
    "tests/views/test_flight_record.py::*": 3,
    "tests/views/test_network_columns.py::*": 3,
    "tests/views/test_time_views.py::*": 2,
    "tests/virtual/compiling/test_autotuned.py::*": 2,
    "tests/virtual/compiling/test_compiled.py::*": 2,
    "tests/virtual/compiling/test_ddp.py::*": 2,
    "tests/virtual/compiling/test_host.py::*": 2,
    "tests/virtual/compiling/test_optimizers.py::*": 2,
    "tests/virtual/compiling/test_padding.py::*": 2,
    "tests/virtual/distributed/test_account.py::*": 3,
    "tests/virtual/distributed/test_against_gloo.py::*": 12,
    "tests/virtual/distributed/test_forms.py::*": 3,
    "tests/virtual/distributed/test_state.py::*": 8,
    "tests/virtual/test_attention.py::*": 3,
    "tests/virtual/test_facts.py::*": 3,
    "tests/virtual/test_facts.py::test_facts_decide_what_they_can": 2,
    "tests/virtual/test_kernels.py::*": 2,
    "tests/virtual/test_loaders.py::*": 2,
    "tests/virtual/test_operators.py::*": 3,
    "tests/virtual/test_operators.py::test_it_gives_what_the_host_gives": 2,
    "tests/virtual/test_values.py::*": 3,
}
"""By test, or by file for each test in it."""

ONE_OF_MANY = {8: 4, 2: 2}
"""Of every other test with more cases than 8 one in four, with more than 2 one in two."""

LONG: dict[str, tuple[str, ...]] = {
    "tests/bench/test_run.py": (
        "test_every_operator_took_its_time",
        "test_what_a_tensor_of_a_list_takes",
    ),
    "tests/cli/test_diff.py": ("test_columns_sort_and_filter_of_one_table",),
    "tests/cli/test_diff_commits.py": (
        "test_a_commit_beside_the_working_tree_as_a_page",
        "test_what_a_killed_process_left_is_removed",
    ),
    "tests/cli/test_explain.py": (
        "test_a_real_step_beside_a_simulated_one",
        "test_a_trace_becomes_a_calibration",
        "test_views_documents_and_what_is_kept",
    ),
    "tests/cli/test_export.py": (
        "test_a_sample_is_drawn_from_the_seed",
        "test_transformers_computes_the_same",
    ),
    "tests/cli/test_export_runs.py": ("test_no_format_needs_torch",),
    "tests/cli/test_fit.py": (
        "test_a_module",
        "test_a_run_that_takes_too_long",
        "test_a_run_that_waits_for_a_value",
        "test_a_script_that_asks_for_the_chip",
        "test_a_script_that_fails_at_odd_values",
    ),
    "tests/cli/test_network_advice.py": (
        "test_smaller_buckets_are_tried_and_what_they_save_is_shown",
    ),
    "tests/cli/test_pipelines.py": (
        "test_ranks_by_number",
        "test_ranks_that_all_receive_first_are_told",
    ),
    "tests/cli/test_run.py": (
        "test_children_are_processes_of_their_own",
        "test_modules_directories_and_archives",
        "test_the_line_on_a_terminal_makes_way_for_the_script",
    ),
    "tests/cli/test_run_watch.py": (
        "test_a_question_of_the_script_stays_on_the_screen",
        "test_elsewhere_it_says_so_once_and_prints_lines_of_progress",
    ),
    "tests/cli/test_show.py": (
        "test_a_reader_that_leaves_early_ends_the_command_in_silence",
        "test_a_reader_that_leaves_is_no_error",
        "test_a_stdout_that_takes_nothing_is_an_error",
        "test_an_ascii_terminal_is_no_reason_to_fail",
        "test_columns_is_respected",
        "test_money_in_eighty_columns",
    ),
    "tests/cli/test_starts.py": (
        "test_a_program_that_failed_in_place_of_a_training",
        "test_a_script_that_finds_too_few_gpus_has_not_trained",
        "test_an_error_in_a_cell_names_cell_and_line",
    ),
    "tests/cli/test_summary.py": ("test_a_configuration_of_transformers",),
    "tests/cli/test_sweep.py": ("test_the_missions_learning_rates_and_one_that_diverges",),
    "tests/cli/test_train.py": ("test_a_decoder", "test_a_plan_for_a_gpu_that_is_not_there"),
    "tests/cli/test_train_arguments.py": ("test_nothing_else_needs_the_extra",),
    "tests/cli/test_view.py": ("test_ctrl_c_ends_it",),
    "tests/examples/test_examples.py": (
        "test_a_loss_that_is_read_is_reported",
        "test_checkpointing_trades_memory_for_flops",
        "test_gpt_costs_what_its_formula_says",
        "test_the_notebook_runs",
    ),
    "tests/isolation/test_report.py": ("test_fit_changes_no_file",),
    "tests/memory/test_memory.py": ("test_the_peak_between_two_ticks_is_the_first_fullest_one",),
    "tests/models/test_counted.py": (
        "test_a_plan_says_where_its_numbers_are_from",
        "test_a_shared_embedding_counts_once",
        "test_experts_that_a_token_meets_and_those_that_it_does_not",
        "test_layouts_need_a_shape",
    ),
    "tests/models/test_summary.py": (
        "test_a_model_on_meta_and_on_a_virtual_gpu_costs_the_same",
        "test_precisions",
    ),
    "tests/live/test_callbacks.py": ("test_accelerate_logs_both",),
    "tests/live/test_monitor.py": ("test_more_memory_than_predicted_is_told",),
    "tests/notebook/test_shown.py": ("test_a_long_table_is_cut_and_says_so",),
    "tests/plan/consistency/test_adapters.py": ("test_recomputed_layers_keep_their_inputs_alone",),
    "tests/plan/consistency/test_reference_models.py": (
        "test_attention_that_keeps_its_scores",
        "test_hardware_flops_of_llama_with_checkpoints",
        "test_layers_that_keep_every_other_product",
    ),
    "tests/plan/consistency/test_seconds.py": (
        "test_experts_that_all_run_keep_what_all_are_given",
    ),
    "tests/plan/parallel/test_search.py": (
        "test_a_ranking_is_the_same_every_time",
        "test_fewer_are_the_first_of_more",
        "test_floors_are_below_what_layers_take",
        "test_of_a_mixture_with_a_dense_layer_too",
        "test_the_fastest_alone_is_the_first_of_all",
    ),
    "tests/plan/questions/test_own_layout.py": (
        "test_its_parts_stand_beside_the_fastest_ones",
        "test_the_fastest_has_nothing_over_itself",
    ),
    "tests/plan/test_hybrids.py": ("test_flops_are_those_that_torchs_counter_sees_in_the_class",),
    "tests/real/test_generation_phases.py": (
        "test_a_beam_search_runs_to_its_end",
        "test_behind_a_window_a_token_more_is_allocated",
    ),
    "tests/real/test_torch_models.py": (
        "test_an_encoder_and_a_decoder",
        "test_evaluating_an_encoder_and_a_decoder_between_steps",
    ),
    "tests/real/test_transformers.py": (
        "test_checkpointing_computes_the_layers_again",
        "test_experts_cost_the_same_in_a_loop_grouped_and_batched",
    ),
    "tests/report/exports/test_memory_snapshot.py": (
        "test_every_allocation_is_where_pytorchs_cuda_build_has_it",
    ),
    "tests/report/exports/test_perfetto.py": ("test_too_many_slices_are_folded_by_line_and_said",),
    "tests/report/test_browser_page.py": (
        "test_a_run_without_times_has_every_view",
        "test_an_empty_run_has_every_view",
        "test_an_operator_opens_its_shapes",
        "test_any_trace_becomes_data_whose_sums_are_the_ledgers",
        "test_memory_over_time_is_zoomed_by_dragging_and_back",
        "test_memory_says_what_is_alive_at_a_moment",
        "test_modules_are_a_tree_whose_sums_hold",
        "test_notes_list_what_is_unknown",
        "test_numbers_are_written_as_in_every_other_report",
        "test_streams_are_zoomed_and_lead_to_the_source",
        "test_the_roofline_tells_of_a_mark_and_hides_a_bound",
        "test_the_treemap_is_gone_into_and_out_of",
        "test_thirty_hostile_names_add_no_element",
    ),
    "tests/report/test_html.py": ("test_a_browser_finds_no_injected_node_either",),
    "tests/report/test_napkin_page.py": (
        "test_a_changed_number_changes_what_follows_and_the_address",
        "test_an_unknown_price_is_an_unknown_cost",
        "test_every_models_own_formulas_hold_at_every_length",
        "test_numbers_are_written_and_read_as_the_planner_does",
        "test_the_working_shows_each_formula_with_its_numbers",
    ),
    "tests/report/test_text.py": ("test_any_name_does_no_harm",),
    "tests/report/test_viewer.py": (
        "test_a_chip_without_times_says_so",
        "test_a_module_holds_what_is_inside_it",
        "test_a_resize_keeps_the_cursor_in_sight",
        "test_markup_is_text",
        "test_memory_begins_at_the_peak_and_arrows_move_through_the_run",
        "test_memory_lists_lines_modules_and_storages",
        "test_s_sorts_by_each_column_in_turn_and_r_reverses",
        "test_search_keeps_matching_rows_and_escape_brings_all_back",
        "test_source_has_every_line_of_the_file_and_the_hottest_under_the_cursor",
        "test_streams_show_what_runs_at_the_cursor",
        "test_the_tree_opens_and_closes_and_sorts_within_a_branch",
        "test_views_open_by_name",
        "test_wide_characters_take_two_columns",
        "test_zooming_keeps_the_cursor_in_sight",
    ),
    "tests/runs/measure/test_meter.py": (
        "test_a_process_that_dies_without_an_answer",
        "test_a_script_that_fails_says_so_with_its_last_lines",
    ),
    "tests/runs/probe/test_folding.py": ("test_scratch_memory_of_a_pass_that_is_not_run",),
    "tests/runs/test_cell.py": (
        "test_a_smaller_chip_has_no_room_for_it",
        "test_parameters_gradients_and_state_keep_their_roles",
        "test_what_a_cell_uses_takes_its_memory",
        "test_what_was_left_is_freed_without_a_session",
    ),
    "tests/runs/test_children.py": (
        "test_an_ignored_signal_stays_ignored",
        "test_what_was_read_at_import_or_another_folder_starts_cold",
    ),
    "tests/steps/test_course.py": ("test_every_step_can_be_shown", "test_steps_make_the_whole_run"),
    "tests/sweep/test_folder.py": (
        "test_two_at_a_time_are_refused_and_a_killed_one_gives_it_free",
    ),
    "tests/sweep/test_space.py": ("test_draws_are_even",),
    "tests/test_benchmarks.py": (
        "test_published_collectives",
        "test_start_up",
        "test_summary_against_the_flop_counter",
    ),
    "tests/test_library.py": (
        "test_a_name_that_a_module_shadows_is_noticed",
        "test_every_public_name_can_be_called_after_every_other_twice",
        "test_the_example_of_the_package_runs",
    ),
    "tests/test_pytest_plugin.py": ("test_workers_of_xdist",),
    "tests/test_torch_versions.py": ("test_a_run_without_a_name_ends_with_one_message",),
    "tests/timing/test_stragglers.py": ("test_the_slowest_is_as_chance_has_it",),
    "tests/tracer/test_by_hand.py": ("test_a_probe_sees_the_same_steps",),
    "tests/tracer/test_clock.py": ("test_waiting_in_a_loop_comes_to_an_end",),
    "tests/tracer/test_tf32.py": ("test_cudnn_may_unless_told_otherwise",),
    "tests/tracer/test_what_if.py": (
        "test_an_optimizer_is_as_if_the_script_had_asked_for_it",
        "test_autocast_is_as_if_the_script_had_entered_it",
        "test_checkpointing_is_as_if_the_script_had_called_it",
        "test_checkpointing_runs_each_product_of_a_layer_once_more",
        "test_torch_is_untouched_afterwards",
    ),
    "tests/tracer/test_what_if_ranks.py": ("test_what_stays_gathered_is_gathered_once",),
    "tests/train/checkpoints/test_damage.py": ("test_every_byte_of_every_file",),
    "tests/train/checkpoints/test_full_disk.py": (
        "test_there_is_no_space_any_more_from_some_call_on",
    ),
    "tests/train/checkpoints/test_kills.py": ("test_a_kill_before_each_call_of_a_save",),
    "tests/train/checkpoints/test_ranks.py": ("test_a_rank_that_is_killed_leaves_the_former",),
    "tests/train/data/test_order.py": ("test_a_step_of_a_mixture_is_a_function_of_the_step",),
    "tests/train/data/test_prepare.py": (
        "test_a_limit_of_file_size_leaves_the_folder_as_it_was",
        "test_memory_does_not_grow_with_the_text",
    ),
    "tests/train/data/test_ring.py": ("test_ctrl_c_while_waiting",),
    "tests/train/data/test_token_data.py": (
        "test_a_file_that_shrinks_while_it_is_read",
        "test_mapped_pages_are_not_memory_of_our_own",
    ),
    "tests/train/faults/test_data_files.py": (
        "test_a_file_that_shrinks_before_a_read_or_in_the_middle_of_it",
    ),
    "tests/train/faults/test_memory.py": ("test_a_whole_training_is_lowered_until_it_fits",),
    "tests/train/faults/test_preparing.py": (
        "test_a_disk_that_is_full",
        "test_no_space_at_any_call_leaves_what_was_there",
    ),
    "tests/train/models/test_memory.py": ("test_chunks_hold_no_whole_logits",),
    "tests/train/ranks/test_parallel.py": ("test_bfloat16_on_ranks_is_bfloat16_alone",),
    "tests/train/ranks/test_parallel_decisions.py": (
        "test_a_step_that_one_rank_cannot_take_no_rank_takes",
        "test_each_rank_drops_out_its_own",
        "test_looking_changes_no_step_and_counts_what_each_rank_holds",
    ),
    "tests/train/test_durable.py": (
        "test_a_signal_saves_and_ends_it",
        "test_a_signal_to_one_rank_saves_and_ends_all",
        "test_schedulers_averages_and_generators_go_on",
    ),
    "tests/train/test_lightning_callback.py": ("test_a_signal_saves_and_ends_it",),
    "tests/train/test_loop.py": (
        "test_evaluation_and_samples_change_nothing",
        "test_it_ends_where_the_validation_loss_falls_no_more",
        "test_it_learns",
        "test_micro_batches_change_nothing_but_the_rounding",
        "test_the_plan_is_what_a_trace_of_the_training_holds",
        "test_the_profilers_trace_is_kept",
        "test_the_teachers_learning_rates",
    ),
    "tests/train/test_precision.py": ("test_what_a_cpu_cannot_do_is_refused",),
    "tests/train/test_resume.py": ("test_what_fails_in_the_background_ends_the_training",),
    "tests/train/test_retry.py": (
        "test_the_simulated_allocator_refuses_and_the_step_is_done_in_parts",
    ),
    "tests/train/test_rounding.py": ("test_state_of_stochastic_rounding_is_bfloat16_and_moves",),
    "tests/train/test_what_was_trained.py": (
        "test_a_changed_hyperparameter_is_the_live_optimizers",
        "test_a_run_that_replaces_another_reads_the_text_of_its_own_config",
        "test_text_that_changed_is_tokenized_again",
        "test_text_that_is_gone_names_the_tokens_made_of_it",
        "test_the_implementation_is_the_configs_and_parameter_groups_are_the_saved",
    ),
    "tests/truth/test_collector.py": (
        "test_a_case_that_fails_is_recorded_and_stops_no_other",
        "test_a_corpus_is_read_as_it_was_written",
        "test_a_prediction_agrees_with_itself",
        "test_a_process_that_fails",
    ),
    "tests/truth/test_times.py": (
        "test_the_command_times_real_steps",
        "test_the_timing_is_in_no_figure_of_memory",
    ),
    "tests/views/test_comparison.py": (
        "test_any_trace_can_be_compared",
        "test_timing_anew_is_accounting_anew",
    ),
    "tests/views/test_drilling.py": (
        "test_at_every_moment_lines_modules_and_storages_sum_to_what_is_alive",
        "test_the_rows_of_a_view_share_all_operators_out",
        "test_the_top_of_the_tree_sums_to_the_total",
    ),
    "tests/views/test_flight_record.py": ("test_a_command_writes_them",),
    "tests/views/test_memory_views.py": (
        "test_a_checkpointed_transformer_holds_one_blocks_activations",
        "test_every_tick_is_in_one_stretch",
    ),
    "tests/views/test_throughput.py": ("test_micro_batches_of_a_gathered_table_add_up",),
    "tests/views/test_time_views.py": ("test_every_view_has_all_of_the_time",),
    "tests/views/test_tracks.py": ("test_fsdp_has_a_slice_for_each_gather",),
    "tests/views/test_views.py": ("test_a_module_with_its_inner_ones_costs_no_less_than_alone",),
    "tests/virtual/compiling/test_cuda_graphs.py": (
        "test_a_graph_captured_while_a_replayed_ones_results_live_leaves_them_alone",
        "test_a_graph_that_is_not_captured_says_why",
        "test_a_result_that_the_next_run_overwrites_is_torchs_error",
    ),
    "tests/virtual/compiling/test_decorated_before.py": (
        "test_they_are_compiled_within_it_and_in_the_next_one",
    ),
    "tests/virtual/compiling/test_host.py": ("test_results_and_inputs_written_to",),
    "tests/virtual/compiling/test_padding.py": (
        "test_a_product_whose_rows_begin_between_boundaries_is_padded_and_said",
        "test_either_can_be_tried",
        "test_inductor_asks_no_program_for_the_rates_of_the_chip",
    ),
    "tests/virtual/compiling/test_tensor_parallel.py": (
        "test_a_graph_begins_with_a_collective_under_way",
    ),
    "tests/virtual/compiling/test_traced.py": (
        "test_a_device_without_a_number_is_the_current_gpu",
        "test_backward_work_that_is_compiled_with_the_forward_pass_is_backward",
        "test_what_is_known_of_the_gpu_is_a_constant_of_the_graph",
    ),
    "tests/virtual/distributed/test_account.py": (
        "test_a_gather_belongs_to_the_module_that_it_serves",
        "test_ddp_waits_for_its_reductions_before_the_optimizer",
        "test_modules_have_the_class_that_the_script_gave_them",
        "test_samples_of_all_ranks_count",
    ),
    "tests/virtual/distributed/test_forms.py": (
        "test_a_distributed_checkpoint_is_found_by_a_load",
        "test_power_sgd_reduces_two_vectors_of_each_matrix",
    ),
    "tests/virtual/extensions/test_custom_operators.py": (
        "test_a_compiled_product_in_float8_within_one",
    ),
    "tests/virtual/extensions/test_flash_attention.py": (
        "test_compiled_code_has_the_same_operators",
    ),
    "tests/virtual/test_attention.py": (
        "test_large_heads_train_on_a_4090_only_where_shared_memory_suffices",
        "test_results_have_the_shapes_of_the_hosts",
    ),
    "tests/virtual/test_kernels.py": ("test_dropout_is_one_kernel_each_way",),
    "tests/virtual/test_saving.py": ("test_loading_it_in_another_process_says_what_is_missing",),
}
"""By file: tests of seconds that have shorter ones beside them. What they hold besides is held by
`make test-all`, and wherever their file or room is named."""

ALONE: dict[str, str] = {
    "tests/virtual/distributed/test_against_gloo.py::"
    "test_a_rank_communicates_and_holds_what_a_real_one_does[4-ddp_views]": "the cases beside it",
    "tests/virtual/distributed/test_against_gloo.py::"
    "test_a_rank_communicates_and_holds_what_a_real_one_does[4-fsdp_resharded_to_2]": (
        "the cases of two ranks, each of which waits for fewer real processes"
    ),
    "tests/train/test_what_was_trained.py::"
    "test_a_changed_key_changes_the_bits_or_is_refused[task]": "the cases beside it",
    "tests/pictures/test_pictures.py::test_screenshots_show_the_page_as_it_is_now": (
        "test_browser_page.py opens the same page in the same browser"
    ),
    "tests/pictures/test_pictures.py::test_the_recording_is_what_the_command_prints_now": (
        "the README's console block prints the same"
    ),
    "tests/cli/test_questions.py::test_a_question_is_one_line_with_an_answer_by_hand"
    '[deepseek-v3 --gpus 2048xH800 --batch 15360 --sequence 4096 --layout "ep 64, pp 16, full"]': (
        "the other questions; plan/questions/test_own_layout.py: this one searches 125,364 layouts"
    ),
    "tests/train/models/test_train_step.py::test_it_compares_a_step_with_those_of_transformers": (
        "a benchmark is run before its figures are printed anywhere"
    ),
    "tests/virtual/compiling/test_autotuned.py::test_the_modes_that_tune_compile": (
        "test_padding.py, of another choice by times; test_compiled.py compiles products"
    ),
    "tests/notebook/test_marimo.py::test_the_example_shows_its_results": (
        "test_shown.py shows the same objects without marimo"
    ),
    "tests/real/test_generation_phases.py::"
    "test_compiled_decoding_issues_less_than_half_as_many_operators": (
        "virtual/compiling holds compiled functions, and the tests beside it generation"
    ),
    "tests/report/exports/test_perfetto.py::test_perfettos_own_processor_reads_all_of_it": (
        "the tests beside it read every slice and counter"
    ),
    "tests/report/test_browser_page.py::"
    "test_two_hundred_thousand_events_are_small_and_open_within_a_second": (
        "the same page with fewer events is opened beside it"
    ),
    "tests/truth/test_collector.py::test_predictions_agree_with_what_was_measured": (
        "test_predictions_of_some_cases_agree_with_what_was_measured"
    ),
    "tests/virtual/distributed/test_pipelines_against_gloo.py::"
    "test_stages_send_and_hold_what_real_ones_do": (
        "cli/test_pipelines.py, which runs a pipeline of the user's"
    ),
    "tests/virtual/compiling/test_restarts.py::"
    "test_sizes_that_are_symbols_from_the_first_compile": (
        "test_compiled.py compiles dynamic shapes"
    ),
    "tests/train/checkpoints/test_full_disk.py::test_small_disks_of_every_size": (
        "test_each_call_fails_once beside it"
    ),
    "tests/train/checkpoints/test_power_loss.py::test_no_flush_can_be_left_out": (
        "test_a_whole_checkpoint_is_left_after_any_call, by the same model of a disk"
    ),
    "tests/train/ranks/test_parallel.py::"
    "test_every_optimizer_steps_shards_as_it_steps_the_whole": (
        "test_any_number_of_ranks_trains_alike, with one optimizer"
    ),
    "tests/train/ranks/test_parallel.py::test_the_linear_teacher_has_ranks_too": (
        "test_any_number_of_ranks_trains_alike"
    ),
    "tests/train/test_durable.py::test_killed_in_some_steps_nanogpt_ends_the_same": (
        "test_killed_at_random_nanogpt_ends_the_same"
    ),
    "tests/train/test_resume.py::test_killed_after_every_step_it_is_the_same": (
        "test_killed_after_any_step_and_resumed_it_is_the_same"
    ),
    "tests/plan/consistency/test_reference_models.py::test_kimi_linear_is_the_ledgers": (
        "plan/test_hybrid_sums.py has its sums by hand"
    ),
    "tests/plan/consistency/test_reference_models.py::"
    "test_rwkvs_layers_that_are_made_again_keep_their_inputs": (
        "test_layers_that_are_made_again_keep_their_inputs, of other models"
    ),
    "tests/train/checkpoints/test_full_disk.py::test_files_that_may_not_grow": (
        "test_each_call_fails_once beside it"
    ),
    "tests/train/models/test_transformer.py::test_it_compiles_whole_in_a_process_without_checks": (
        "the model compiled in a training: test_step.py"
    ),
    "tests/train/ranks/test_resume.py::test_a_checkpoint_damaged_on_any_rank_is_refused_by_all": (
        "checkpoints/test_damage.py, of one rank"
    ),
    "tests/train/ranks/test_parallel.py::test_every_precision_goes_with_replicas": (
        "test_any_number_of_ranks_trains_alike"
    ),
    "tests/train/test_durable.py::test_a_damaged_checkpoint_gives_way_to_the_one_before": (
        "checkpoints/test_damage.py"
    ),
    "tests/tracer/test_what_if.py::test_a_class_within_a_compiled_whole_is_said_to_be_there": (
        "the tests beside it, of eager modules"
    ),
    "tests/tracer/test_clock.py::test_a_child_process_has_the_hosts_clock": (
        "test_threads_of_the_program_keep_the_real_clock"
    ),
    "tests/plan/test_mutants.py::test_a_change_that_nobody_would_notice_survives": (
        "test_the_sums_notice_a_changed_number"
    ),
    "tests/virtual/compiling/test_ddp.py::test_every_step_holds_what_the_cuda_build_holds": (
        "test_it_is_compiled_and_reduces_the_same, and test_against_gloo.py"
    ),
    "tests/virtual/compiling/test_optimizers.py::test_the_compiler_is_not_stopped_by_who_watches": (
        "test_a_compiled_step_ends_a_training_step"
    ),
    "tests/virtual/compiling/test_cuda_graphs.py::test_another_length_is_captured_after_replays": (
        "test_a_replay_runs_the_kernels_of_the_default_mode_where_they_belong"
    ),
    "tests/virtual/compiling/test_traced.py::test_composite_operators_keep_their_gradients": (
        "test_compiled.py compares whole cases with the CUDA build"
    ),
    "tests/train/faults/test_programs.py::test_it_ends_as_if_it_had_not_been_killed": (
        "test_durable.py and test_resume.py kill single steps"
    ),
    "tests/train/test_durable.py::test_ranks_go_on_each_with_its_own_batches": (
        "ranks/test_resume.py"
    ),
    "tests/train/ranks/test_resume.py::test_the_same_number_of_ranks_goes_on_bit_for_bit": (
        "test_another_number_of_ranks_goes_on"
    ),
    "tests/train/ranks/test_parallel.py::test_the_mean_is_over_the_targets_of_all_ranks": (
        "test_any_number_of_ranks_trains_alike"
    ),
    "tests/virtual/compiling/test_compiled.py::test_flex_attention_counts_what_its_mask_leaves": (
        "virtual/test_flex_attention.py, and test_a_mask_made_in_the_graph_is_counted_by_its_blocks"
    ),
    **dict.fromkeys(
        (
            "tests/report/test_viewer.py::test_an_empty_run_has_every_page",
            "tests/report/test_viewer.py::test_hostile_names_are_shown_as_text",
            "tests/report/test_viewer.py::test_rows_that_are_not_seen_are_not_formatted",
            "tests/sweep/test_results.py::test_the_table_fits",
            "tests/sweep/test_results.py::test_any_losses_can_be_drawn",
            "tests/report/test_browser_page.py::test_the_chart_keeps_every_peak_of_many_events",
        ),
        "the screens beside it",
    ),
    **dict.fromkeys(
        (
            "tests/models/test_counted.py::test_a_transformer_for_diffusion_by_hand",
            "tests/models/test_counted.py::test_images_count_the_tower_that_a_plan_leaves_out",
            "tests/plan/consistency/test_adapters.py::test_magnitudes_are_the_ledgers",
            "tests/plan/consistency/test_reference_models.py::test_models_of_real_width",
            "tests/plan/consistency/test_reference_models.py::test_rwkv_is_the_ledgers",
        ),
        "the sums by hand beside it, of other models",
    ),
    **dict.fromkeys(
        (
            "tests/views/test_flight_record.py::test_another_size_on_one_rank_is_a_mismatch",
        ),
        "test_every_collective_of_every_rank_is_matched",
    ),
    **dict.fromkeys(
        (
            "tests/virtual/compiling/test_optimizers.py::test_its_kernels_belong_to_the_line_that_steps",
        ),
        "test_a_compiled_step_ends_a_training_step",
    ),
    **dict.fromkeys(
        (
            "tests/cli/test_export.py::test_byte_pairs_and_bfloat16_weights",
            "tests/cli/test_export.py::test_weights_of_fewer_bits",
            "tests/report/exports/test_stacks.py::test_speedscopes_own_page_opens_it",
        ),
        "the exports beside it",
    ),
    **dict.fromkeys(
        (
            "tests/plan/parallel/test_search.py::test_a_large_search_takes_seconds",
            "tests/plan/parallel/test_search.py::test_the_ranking_is_that_of_all_layouts_one_by_one",
            "tests/cli/test_fit.py::test_a_search_on_a_cluster",
        ),
        "the searches beside it",
    ),
    **dict.fromkeys(
        (
            f"tests/test_docs.py::test_a_document_holds[docs/{name}.md]"
            for name in ("clusters", "gates", "generation", "how_to", "inference", "plan",
                         "questions", "report", "trainings")
        ),
        "the commands have tests of their own; other documents show that blocks are run",
    ),
    **dict.fromkeys(
        (
            f"tests/test_benchmarks.py::test_{name}"
            for name in ("six_models_by_hand", "summary_of_a_model_of_the_peers", "full_screen",
                         "predicted_steps_stand_beside_measured_ones", "monitor", "peers",
                         "compare_chips", "allocator", "checkpoint_saving", "cluster_ranks",
                         "compile_seconds")
        ),
        "a benchmark is run before its figures are printed anywhere",
    ),
}  # fmt: skip
"""By test, or by case: what holds the same rule in `make test`."""

_LONG = {f"{file}::{test}" for file, tests in LONG.items() for test in tests}


def without_thorough(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """(those that `make test` runs, the others)."""
    kept, left = [], []
    cases = Counter(item.nodeid.partition("[")[0] for item in items)
    seen: Counter[str] = Counter()
    for item in items:
        test = item.nodeid.partition("[")[0]
        of_file = ONE_CASE_IN.get(test.partition("::")[0] + "::*")
        of_many = next((step for many, step in ONE_OF_MANY.items() if cases[test] > many), 1)
        step = ONE_CASE_IN.get(test) or of_file or of_many
        is_named = test in ALONE or item.nodeid in ALONE or test in _LONG
        is_left = is_named or seen[test] % step > 0
        seen[test] += 1
        (left if is_left else kept).append(item)
    return kept, left
