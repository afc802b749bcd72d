"""Which tests the tiers run; no other place says so.

--tier quick     what `make check` and `make test` run: not LONG, nor what asks an S3 server, nor most seeds; few
                 examples of each property
--tier rest      what quick left out, and whole what quick shortens: properties, and tests that ask `rounds`
--tier all       quick and rest: what CI runs
--tier rare      RARE, which the others leave out

Without a tier pytest runs every test that it is given.

Which tests run on the compiled build (rewindmq/builds.py), and which only there:

--build compiled    all but OF_PURE; fails at once where the pure build runs
--build pure        only OF_PURE; fails at once where the compiled build runs
"""

import inspect
import re
from fnmatch import fnmatchcase, translate

import pytest
from hypothesis import is_hypothesis_test

from rewindmq.builds import COMPILED, PURE
from tests.support.examples import rounds

TIERS = ("quick", "rest", "all", "rare")
SEEDS = 12  # of each kind of simulated history, in the quick tier

# Node ids below tests/, as fnmatch patterns. Chosen by durations in two processes on two busy cores: a test that takes
# more than some eight seconds, or a file that starts a Kafka or a RabbitMQ of its own and has a cheaper sibling; and
# most seeds and steps of the most expensive unit tests.
LONG = (
    "examples/test_examples.py::test_a_service_publishes_and_consumes_and_the_log_is_folded_and_audited",
    "examples/test_examples_languages.py::*",
    "install/test_install_spark.py::*",
    "simulation/*::test_the_histories_meet_everything",
    "simulation/test_simulation_archive.py::test_a_planted_defect_is_found*",
    "simulation/test_simulation_clocks.py::test_histories_under_a_wrong_clock",
    "simulation/test_simulation_nodes.py::test_histories_of_lookaheads",
    "simulation/test_simulation_nodes_moves.py::test_a_planted_defect_is_found*",
    "simulation/test_simulation_nodes_moves.py::test_a_history_with_repartitions[[]1[01]]",
    "simulation/test_simulation_nodes_moves.py::test_a_history_with_repartitions[[][4-9]]",
    "simulation/test_simulation_nodes_planted.py::*",
    "simulation/test_simulation_planted.py::*",
    "simulation/test_simulation_years.py::*",
    "system/archive/test_archive_beside.py::*",
    "system/archive/test_archive_commands.py::test_a_kill_at_any_moment_and_several_at_once*",
    "system/archive/test_archive_fork.py::*",
    "system/archive/test_archive_keep_local.py::*",
    "system/archive/test_archive_repartition.py::*",
    "system/archive/test_archive_trim.py::*",
    "system/archive/test_archive_trim_kills.py::*",
    "system/cli/test_cli_find.py::*",
    "system/cli/test_cli_outputs.py::*",
    "system/cli/test_cli_proof_verifier.py::*",
    "system/cli/test_cli_register.py::*_a_history_that_was_cut_gets_no_cosignature",
    "system/cli/test_cli_register.py::*_a_witness_*",
    "system/cli/test_cli_removals.py::*",
    "system/cli/test_cli_repartition.py::*",
    "system/cli/test_cli_spans.py::*",
    "system/cli/test_cli_spans_collector.py::*",
    "system/cli/test_cli_what_if.py::*",
    "system/clients/test_clients_celery.py::test_tasks_for_later_do_not_keep_one_for_now_waiting",
    "system/clients/test_clients_celery_canvas.py::*",
    "system/clients/test_clients_definitions.py::*",
    "system/clients/test_clients_identity.py::*",
    "system/clients/test_clients_perftest.py::*",
    "system/compose/test_compose_stack.py::*",
    "system/demo/*",
    "system/desk/*",
    "system/durability/test_durability_damage.py::test_a_block_that_was_not_ended_is_cut_and_said*",
    "system/durability/test_durability_damage.py::test_a_changed_byte_is_refused_with_file_and_place",
    "system/durability/test_durability_damage.py::test_a_changed_schema_in_a_header_is_refused",
    "system/durability/test_durability_damage.py::test_an_end_that_*",
    "system/durability/test_durability_damage.py::test_half_a_block_that_was_synced_is_cut_and_said*",
    "system/durability/test_durability_day_expiry.py::test_b21_a_wall_clock_that_jumps_by_a_year_destroys_nothing",
    "system/durability/test_durability_day_expiry.py::test_b21_the_life_of_a_day",
    "system/durability/test_durability_erasure.py::test_a_start_that_makes_no_sense_is_one_line",
    "system/durability/test_durability_erasure.py::test_b15_*",
    "system/durability/test_durability_full_disk.py::test_a_full_disk_holds_publishers_back*",
    "system/durability/test_durability_keep_history.py::*",
    "system/durability/test_durability_kills.py::*",
    "system/durability/test_durability_lost_end.py::*",
    "system/durability/test_durability_memory.py::test_bodies_that_never_end_are_bounded",
    "system/durability/test_durability_memory.py::test_large_messages_for_a_client_that_does_not_read_stay_in_the_store",
    "system/durability/test_durability_move.py::*",
    "system/durability/test_durability_no_room.py::test_a_large_publish_waits_for_room_and_acks_do_not_wait_for_it*",
    "system/durability/test_durability_no_room.py::test_a_start_on_a_full_disk_*",
    "system/durability/test_durability_no_room.py::test_descriptors_*",
    "system/durability/test_durability_no_room.py::test_publishing_goes_on_after_rocksdb_met_a_full_disk",
    "system/durability/test_durability_restore.py::*",
    "system/engine/test_amqp_robustness.py::test_a_thousand_channels_on_a_connection",
    "system/engine/test_broker_process.py::test_a_history_of_a_newer_version_*",
    "system/engine/test_broker_process.py::test_what_prevents_a_start_is_one_line_and_an_exit_code",
    "system/engine/test_doors_of_a_broker.py::test_idle_sockets_of_one_host_take_nothing_from_amqp_or_the_store",
    "system/engine/test_identity.py::test_b55_sighup_*",
    "system/engine/test_identity.py::test_b56_*",
    "system/http/test_http_depth.py::test_b31_a_range_*",
    "system/http/test_http_depth.py::test_b31_each_point_*",
    "system/http/test_http_fields.py::*",
    "system/http/test_http_find_index.py::*",
    "system/http/test_http_live.py::*",
    "system/http/test_http_moved_past.py::*",
    "system/http/test_http_outcomes.py::*",
    "system/http/test_http_past.py::test_an_answer_shows_so_many_bytes_and_no_more",
    "system/http/test_http_policy_effects.py::test_b45_it_says_what_then_happens",
    "system/http/test_http_quarantine.py::test_what_makes_no_sense_is_listed_and_counted_also_after_a_restart*",
    "system/http/test_http_queues.py::test_get_answers_with_so_many_bytes_and_leaves_the_rest",
    "system/http/test_http_rabbitmqadmin.py::*",
    "system/http/test_http_reference.py::*",
    "system/http/test_http_removals.py::test_b38_an_operator_deletes_single_messages*",
    "system/http/test_http_restore.py::test_b02_a_purge_is_undone",
    "system/http/test_http_restore_rate.py::*",
    "system/http/test_http_restored_header.py::test_b33_a_restored_message_says_where_it_was_and_when",
    "system/http/test_http_seals.py::test_b44_*",
    "system/http/test_http_sessions.py::test_b28_who_reads_the_past_over_http",
    "system/http/test_http_shapes.py::*",
    "system/http/test_http_what_if.py::test_b34_a_limit_would_have_dropped_the_oldest",
    "system/kafka/test_kafka_archive.py::*",
    "system/kafka/test_kafka_archive_beside.py::*",
    "system/kafka/test_kafka_archive_grown.py::*",
    "system/kafka/test_kafka_bench.py::*",
    "system/kafka/test_kafka_certainty.py::*",
    "system/kafka/test_kafka_clients.py::*",
    "system/kafka/test_kafka_cluster.py::*",
    "system/kafka/test_kafka_consoles.py::*",
    "system/kafka/test_kafka_copy_state.py::*",
    "system/kafka/test_kafka_day_expiry.py::*",
    "system/kafka/test_kafka_entry.py::*",
    "system/kafka/test_kafka_erasure.py::*",
    "system/kafka/test_kafka_event_exchange.py::*",
    "system/kafka/test_kafka_events.py::test_a_kafka_that_is_away_and_a_prefix_without_topics_are_one_line",
    "system/kafka/test_kafka_faults.py::*",
    "system/kafka/test_kafka_floor.py::*",
    "system/kafka/test_kafka_grown.py::*",
    "system/kafka/test_kafka_keep_history.py::*",
    "system/kafka/test_kafka_log.py::test_a_node_whose_topics_were_deleted_fails",
    "system/kafka/test_kafka_metadata_snapshots.py::*",
    "system/kafka/test_kafka_modes.py::test_b49_a_policy_that_refuses_reaches_a_queue_when_every_node_knows_it",
    "system/kafka/test_kafka_modes.py::test_b49_a_publish_over_http_*",
    "system/kafka/test_kafka_modes.py::test_b49_a_queue_that_*",
    "system/kafka/test_kafka_modes.py::test_b49_messages_published_at_a_node_that_is_killed_are_there",
    "system/kafka/test_kafka_modes.py::test_b50_*",
    "system/kafka/test_kafka_modes.py::test_b58_*",
    "system/kafka/test_kafka_modes.py::test_b70_*",
    "system/kafka/test_kafka_repartition.py::*",
    "system/kafka/test_kafka_returns.py::*",
    "system/kafka/test_kafka_nodes.py::*[[]every_node_folds]",
    "system/kafka/test_kafka_nodes_ending.py::*",
    "system/kafka/test_kafka_nodes_messages.py::*[[]every_node_folds]",
    "system/kafka/test_kafka_operating.py::*",
    "system/kafka/test_kafka_owners.py::*_spread_evenly",
    "system/kafka/test_kafka_past.py::*",
    "system/kafka/test_kafka_producing.py::*",
    "system/kafka/test_kafka_removals.py::*",
    "system/kafka/test_kafka_restore.py::*",
    "system/kafka/test_kafka_retention.py::*",
    "system/kafka/test_kafka_seals.py::*",
    "system/kafka/test_kafka_space.py::*",
    "system/kafka/test_kafka_state.py::*",
    "system/kafka/test_kafka_streams.py::test_b01_the_past_is_read_at_any_node*",
    "system/kafka/test_kafka_trim.py::*",
    "system/kafka/test_kafka_trouble.py::*",
    "system/kafka/test_kafka_upgrade.py::*",
    "system/monitoring/*",
    "system/moving/*",
    "system/process/test_bench.py::*",
    "system/process/test_broker_killed.py::test_a_broker_killed_while_it_writes_snapshots_*",
    "system/process/test_broker_killed.py::test_letters_of_a_mass_that_was_dropped_survive_kill_9",
    "system/process/test_next_version.py::*_a_crash_between_the_logs_*",
    "system/process/test_next_version.py::*_the_way_back_*",
    "system/process/test_rerun.py::test_a_process_that_a_test_ends_is_a_failure_of_that_test",
    "system/process/test_rerun.py::test_a_test_that_passes_alone_is_flaky*",
    "system/process/test_rerun.py::test_more_than_three_failures_are_not_run_again",
    "system/process/test_rerun.py::test_what_passes_and_what_cannot_begin_has_pytests_status",
    "system/process/test_trimmed.py::*",
    "system/spark/test_spark_answers.py::*",
    "system/spark/test_spark_archive.py::*",
    "system/spark/test_spark_archive_kafka.py::*",
    "system/spark/test_spark_bench.py::*",
    "system/spark/test_spark_bring_back.py::*",
    "system/spark/test_spark_chain.py::*",
    "system/spark/test_spark_chunks.py::*",
    "system/spark/test_spark_cli.py::test_a_corrupt_log_exits_65_with_file_and_offset",
    "system/spark/test_spark_cli.py::test_a_pipe_that_nobody_reads_is_no_error_and_no_finding*",
    "system/spark/test_spark_cli.py::test_at_a_terminal_it_says_that_spark_starts_and_shows_tables",
    "system/spark/test_spark_cli.py::test_history_as_*",
    "system/spark/test_spark_cli.py::test_several_moments_in_one_go",
    "system/spark/test_spark_cluster.py::*",
    "system/spark/test_spark_diff.py::*",
    "system/spark/test_spark_erased.py::*",
    "system/spark/test_spark_golden.py::*",
    "system/spark/test_spark_kafka.py::*",
    "system/spark/test_spark_kafka_settings.py::*",
    "system/spark/test_spark_keep_local.py::*",
    "system/spark/test_spark_kept_history.py::*",
    "system/spark/test_spark_last_words.py::*",
    "system/spark/test_spark_ledgers.py::*",
    "system/spark/test_spark_ledgers_kafka.py::*",
    "system/spark/test_spark_lineage.py::*",
    "system/spark/test_spark_moved_queue.py::test_an_archive_that_has_grown_is_read_whole*",
    "system/spark/test_spark_outputs.py::*",
    "system/spark/test_spark_seals.py::*",
    "system/spark/test_spark_security.py::*",
    "system/spark/test_spark_source.py::test_more_partitions_of_spark_have_the_same_rows_in_the_same_order",
    "system/spark/test_spark_source_folds.py::test_a_history_is_shown_from_the_checkpoint_that_was_named",
    "system/spark/test_spark_source_folds.py::test_a_state_is_folded_from_the_checkpoint_that_was_named",
    "system/spark/test_spark_source_folds.py::test_snapshots_of_an_own_directory_are_used_and_a_damaged_checkpoint_is_an_error",
    "system/spark/test_spark_source_kafka.py::*",
    "system/spark/test_spark_source_stream.py::*",
    "system/spark/test_spark_spans.py::*",
    "system/spark/test_spark_sql.py::*",
    "system/spark/test_spark_state.py::*",
    "system/spark/test_spark_trim_beside.py::*",
    "system/spark/test_spark_trimmed.py::*",
    "system/spark/test_spark_trimmed_archive.py::*",
    "system/spark/test_spark_watch.py::*",
    "system/spark/test_spark_what_if.py::*",
    "system/spark/test_spark_without.py::*",
    "system/standby/*",
    "system/vault/test_vault_broker.py::*",
    "system/vault/test_vault_standby.py::*",
    "unit/archive/test_archive_archiver.py::test_a_store_that_fails_at_any_step_does_no_harm*",
    "unit/archive/test_archive_branch.py::test_a_fork_that_is_killed_at_any_step_is_begun_again",
    "unit/archive/test_archive_branch.py::test_the_state_is_that_of_the_archive_at_the_moment",
    "unit/archive/test_archive_damage.py::test_a_changed_byte_is_found_and_located",
    "unit/archive/test_archive_damage.py::test_an_object_of_another_length_is_found_and_located",
    "unit/archive/test_archive_local_space.py::*killed_anywhere_loses_nothing",
    "unit/archive/test_archive_pack.py::test_any_segment_comes_back_byte_for_byte",
    "unit/archive/test_archive_pages.py::test_an_archive_of_10_000_segments_is_opened_with_some_hundred_requests",
    "unit/archive/test_archive_reader.py::test_reading_through_the_archive_equals_reading_the_directory",
    "unit/archive/test_archive_recovery.py::test_a_recovery_that_is_killed_at_any_step_is_begun_again",
    "unit/archive/test_archive_topic_pack.py::test_any_records_come_back",
    "unit/archive/test_archive_torn.py::*[[]one by one]",
    "unit/engine/test_broker_audited.py::test_stories_with_restores_crashes_and_marks_have_no_findings",
    "unit/engine/test_broker_histories.py::test_a_random_history[[]1[01]]",
    "unit/engine/test_broker_histories.py::test_a_random_history[[][3-9]]",
    "unit/engine/test_day_expiry.py::*whatever_happens_no_queued_message_loses_its_body",
    "unit/engine/test_disk_flow.py::test_acks_become_durable_when_the_disk_gets_full_under_dead_letters",
    "unit/engine/test_importing.py::test_any_document",
    "unit/engine/test_repartition_nodes.py::test_b77_another_node_goes_on_where_the_mover_died[[]agreement*",
    "unit/engine/test_repartition_nodes.py::test_b77_another_node_goes_on_where_the_mover_died[[]moves._decl*",
    "unit/engine/test_repartition_nodes.py::test_b77_another_node_goes_on_where_the_mover_died[[]moves.end]",
    "unit/log/test_log_cut.py::test_a_cut_that_is_killed_between_any_two_removals_is_ended_at_the_next_opening[[]1[01]]",
    "unit/log/test_log_cut.py::test_a_cut_that_is_killed_between_any_two_removals_is_ended_at_the_next_opening[[][1-57-9]]",
    "unit/log/test_log_id_index.py::test_b46_a_search_with_the_index_finds_what_one_without_finds",
    "unit/log/test_log_id_index.py::test_b46_a_trimmed_log_is_searched_from_where_it_begins_and_its_base_too",
    "unit/log/test_log_sound_records.py::test_records_of_all_kinds_and_harmed_ones_are_judged_as_by_the_decoder[[]1?]",
    "unit/log/test_log_sound_records.py::test_records_of_all_kinds_and_harmed_ones_are_judged_as_by_the_decoder[[][5-9]]",
    "unit/log/test_log_time_set_back.py::test_a_moment_is_found_in_the_last_stretch_that_had_it[[]lost[12]-1]",
    "unit/log/test_log_time_set_back.py::test_a_moment_is_found_in_the_last_stretch_that_had_it[[]lost[12]-400]",
    "unit/machine/test_machine_audited_plainly.py::test_plain_traffic_is_booked_as_the_ledgers_book_it[[][1-3]?]",
    "unit/machine/test_machine_histories.py::test_as_the_naive_model[[]1[01]]",
    "unit/machine/test_machine_histories.py::test_as_the_naive_model[[][4-9]]",
    "unit/machine/test_machine_histories.py::test_as_the_naive_model_with_small_chunks[[]1[6-9]]",
    "unit/machine/test_machine_histories.py::test_as_the_naive_model_with_small_chunks[[]2?]",
    "unit/machine/test_machine_histories.py::test_digest_does_not_depend_on_the_way[[]10[123]]",
    "unit/machine/test_machine_lookahead.py::test_many_come_back_before_many_that_wait",
    "unit/projections/test_projections_repeats.py::test_the_store_is_as_the_log_says[[][5-9]]",
    "unit/projections/test_projections_repeats.py::test_the_store_is_as_the_log_says[[][12]?]",
    "unit/spark/test_audit_trimmed.py::test_b18_a_trimmed_history_of_everything_is_sound_from_every_floor[[][2-7]]",
    "unit/spark/test_spark_repeats.py::test_the_rows_are_those_of_the_events",
)
# A sibling shows nearly the same, on another store or with another seed, or the test tries other tests and benchmarks.
# Each takes more than a minute of a busy machine, and CI has ninety for everything. `make soak` runs them.
RARE = (
    "install/test_install_spark.py::test_rewindmq_spark_is_sparks_command_line",
    "simulation/*::test_the_histories_meet_everything",
    "simulation/test_simulation.py::test_a_history[[]1??]",
    "simulation/test_simulation_archive.py::test_a_planted_defect_is_found*",
    "simulation/test_simulation_nodes_moves.py::test_a_planted_defect_is_found*",
    "simulation/test_simulation_nodes_planted.py::*",
    "simulation/test_simulation_years.py::test_a_planted_defect_is_found*",
    "system/archive/test_archive_beside.py::test_a_killed_archiver_is_started_again[[]directory]",
    "system/archive/test_archive_beside.py::test_another_archiver_at_the_same_time[[]directory]",
    "system/archive/test_archive_beside.py::test_kills_of_both_*[[]directory]",
    "system/archive/test_archive_beside.py::test_status_and_metrics_*[[]directory]",
    "system/archive/test_archive_beside.py::test_what_happens_is_archived_beside_the_broker[[]directory]",
    "system/archive/test_archive_beside.py::test_what_is_archived_leaves_the_disk[[]s3]",
    "system/archive/test_archive_fork.py::*[[]directory]",
    "system/archive/test_archive_keep_local.py::test_b24_a_cut_broker_answers_as_before[[]directory]",
    "system/archive/test_archive_keep_local.py::test_b24_while_the_archive_is_away_*[[]directory]",
    "system/archive/test_archive_keep_local.py::test_spark_reads_through*",
    "system/archive/test_archive_recover.py::test_spark_reads_objects_*",
    "system/archive/test_archive_trim.py::*_kill_9_before_each_object_*[[]directory]",
    "system/archive/test_archive_trim_kills.py::*[[]do_archive-all]",
    "system/archive/test_archive_trim_kills.py::*[[]do_start-*",
    "system/archive/test_archive_trim_kills.py::*[[]do_trim-all]",
    "system/clients/test_clients_perftest.py::test_what_is_published_arrives[[]co*",
    "system/demo/test_notebook.py::test_it_runs_from_top_to_bottom",
    "system/desk/test_desk_accessible.py::test_b44_pages_fit_and_a_screen_reader_can_tell_them[[]phone-light]",
    "system/desk/test_desk_accessible.py::test_b44_pages_fit_and_a_screen_reader_can_tell_them[[]wide-dark]",
    "system/desk/test_desk_accessible.py::test_b44_pages_fit_and_a_screen_reader_can_tell_them[[]wide-light]",
    "system/desk/test_desk_many_queues.py::*",
    "system/durability/test_durability_keep_history.py::*_a_kill_in_each_step_loses_nothing[[]*-process]",
    "system/durability/test_durability_keep_history.py::*_a_kill_in_each_step_loses_nothing[[]a*-broker]",
    "system/durability/test_durability_keep_history.py::*_a_kill_in_each_step_loses_nothing[[]removed-broker]",
    "system/durability/test_durability_keep_history.py::*_a_kill_in_each_step_loses_nothing[[]written-broker]",
    "system/durability/test_durability_keep_history.py::*_the_archive_is_trimmed_with_it[[]answered-process]",
    "system/durability/test_durability_keep_history.py::*_the_archive_is_trimmed_with_it[[]removed-broker]",
    "system/durability/test_durability_restore.py::*_a_restoration_that_was_cut_short_is_finished_by_asking_again[[]step[23]-*",
    "system/kafka/test_kafka_bench.py::*",
    "system/kafka/test_kafka_faults.py::*_where_nodes_fold_what_they_must[[]1]",
    "system/kafka/test_kafka_faults.py::test_nothing_confirmed_is_lost[[]kill_a_kafka_node]",
    "system/kafka/test_kafka_keep_history.py::test_b40_nodes_and_the_processes_beside_them_are_killed",
    "system/kafka/test_kafka_state.py::*_takes_no_writes_*[[]killed]",
    "system/kafka/test_kafka_state.py::test_a_node_comes_back_from_a_damaged_state[[]*-stopped]",
    "system/kafka/test_kafka_state.py::test_a_node_comes_back_from_a_damaged_state[[]cut_tables-*",
    "system/kafka/test_kafka_state.py::test_a_node_comes_back_from_a_damaged_state[[]lose_a_table-*",
    "system/kafka/test_kafka_state.py::test_a_node_comes_back_from_a_damaged_state[[]lose_current-*",
    "system/kafka/test_kafka_state.py::test_a_node_comes_back_from_a_damaged_state[[]lose_the_manifest-*",
    "system/kafka/test_kafka_state.py::test_bodies_that_a_node_cannot_read_come_from_the_log[[]True]",
    "system/kafka/test_kafka_trim.py::*_a_kill_before_any_change_of_the_archive_is_made_good",
    "system/kafka/test_kafka_trouble.py::test_each_of_three_nodes_dies_in_turn",
    "system/process/test_bench.py::*",
    "system/spark/test_spark_answers.py::*_a_policy_would_have_done_what_spark_says[[]True]",
    "system/spark/test_spark_answers.py::*_a_search_finds_what_spark_finds[[]3]",
    "system/spark/test_spark_archive.py::test_the_command_line_reads_an_archive",
    "system/spark/test_spark_archive_kafka.py::test_b27_below_kafkas_start_the_archive_is_read",
    "system/spark/test_spark_bench.py::*",
    "system/spark/test_spark_cli.py::test_at_a_terminal_*",
    "system/spark/test_spark_clouds.py::*",
    "system/spark/test_spark_cluster.py::*",
    "system/spark/test_spark_golden.py::test_slo_is_as_it_was[[]in_pieces-1*",
    "system/spark/test_spark_golden.py::test_slo_is_as_it_was[[]in_pieces-7*",
    "system/spark/test_spark_kept_history.py::*was_cut_short_is_done_again[[]parquet]",
    "system/spark/test_spark_kept_history.py::test_without_delta_it_says_what_to_pass",
    "system/spark/test_spark_ledgers.py::test_a_forged_ledger_*[[]forget_a_letter]",
    "system/spark/test_spark_ledgers.py::test_a_forged_ledger_*[[]other_machine]",
    "system/spark/test_spark_lineage.py::test_sparks_names_hold_*",
)
# Files that `--build compiled` leaves out, and `--build pure` runs. Their tests start a Kafka or Spark, install
# packages, call commands, which are not compiled, plant defects in place of functions, which compiled code calls
# without asking for their names, or read the source and its types.
OF_PURE = (
    "install/*",
    "simulation/test_simulation_planted.py",
    "system/cli/*",
    "system/compose/*",
    "system/demo/*",
    "system/kafka/*",
    "system/spark/*",
    "tidy/*",
)
# Files of tests of the compiled build. Where the pure build runs they are left out; `make test-compiled` runs them.
OF_COMPILED = ("builds/*",)
LONG_FILES = tuple(each.removesuffix("::*") for each in LONG if each.endswith(("::*", "/*")))
IS_LONG, IS_RARE = (re.compile("|".join(translate(f"tests/{each}") for each in all)) for all in (LONG, RARE))
SEED = re.compile(r"tests/simulation/.*\[(\d+)\]$")


def is_long(nodeid: str) -> bool:
    """The quick tier leaves it out."""
    seed = SEED.match(nodeid)
    if seed is not None and int(seed[1]) % 1_000 >= SEEDS:
        return True
    return IS_LONG.match(nodeid) is not None


def asks_a_store(item: pytest.Item) -> bool:
    """It starts a server of object storage, which a fresh machine has to build: so the quick tier leaves it out."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return not {"s3", "cloud"}.isdisjoint(getattr(item, "fixturenames", ())) or parameters.get("place") == "s3"


def leaves_out(file: str, tier: str) -> bool:
    """Return True if the tier runs no test of a file. `file`: its path from tests/ on."""
    return tier == "quick" and any(fnmatchcase(file, each) for each in LONG_FILES)


def suits(file: str, build: str, asked: str) -> bool:
    """Return True if the tests of a file run on the current build.

    `file`: its path relative to tests/. `asked`: the value of --build, or empty.
    """
    of_pure, of_compiled = (any(fnmatchcase(file, each) for each in files) for files in (OF_PURE, OF_COMPILED))
    if asked and of_pure != (asked == PURE):
        return False
    return build == COMPILED or not of_compiled


def is_shortened(item: pytest.Item) -> bool:
    """The quick tier tries it less often (tests/support/examples.py)."""
    function = getattr(item, "function", None)
    if function is None:
        return False
    return is_hypothesis_test(function) or rounds.__name__ in inspect.unwrap(function).__code__.co_names


def is_rare(nodeid: str) -> bool:
    """Only the tier `rare` runs it."""
    return IS_RARE.match(nodeid) is not None


def belongs(item: pytest.Item, tier: str) -> bool:
    """Return True if a tier runs a test. `tier`: empty if none was named."""
    if not tier:
        return True
    if is_rare(item.nodeid) or tier == "rare":
        return is_rare(item.nodeid) and tier == "rare"
    if tier == "all" or (tier == "rest" and is_shortened(item)):
        return True
    return (is_long(item.nodeid) or asks_a_store(item)) == (tier == "rest")
