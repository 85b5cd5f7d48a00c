"""Which tests run on SQLite alone, and why. Every other test that uses ``db`` runs on both databases.

A key is a file, or ``file::test``.
"""

from __future__ import annotations

FILE = "looks at the file, its locks or its log"
RAW = "looks at the rows with sqlite3"
DAMAGE = "damages the file"
SQL = "speaks SQLite's SQL: json_extract, PRAGMA, sqlite_master"
MANY = "a frozen clock makes each of 400 runs look at all the others' ids, one journey each"
SPAWNS = "starts many processes on the file"

SQLITE_ONLY: dict[str, str] = {
    "test_admin_store.py::test_two_claims_at_once_leave_one": SPAWNS,
    "test_cli_list.py::test_case_076_names_are_data": RAW,
    "test_cli_manage.py::test_case_064_odd_ids_are_shown_and_found": "the ids are what it is about",
    "test_cli_show.py::test_case_055_times_are_utc_with_their_zone": "the zone is what it is about",
    "test_cli_show.py::test_lost_events_are_a_warning_of_the_run": RAW,
    "test_cli_sql.py": RAW,
    "test_cli_narrow.py": "the screen is what it is about",
    "test_cli_completion.py": "the shell is what it is about",
    "test_cli_texts.py::test_doctor_warns_of_no_file_that_has_only_the_stores_own_mode": FILE,
    "test_cli_streams.py": "the streams are what it is about",
    "test_cli_upkeep.py": FILE,
    "test_async_batch.py": RAW,
    "test_batch_disk.py": FILE,
    "test_async_steps.py::test_a_thousand_steps_at_once_are_all_stored_while_another_process_holds_the_lock": RAW,
    "test_async_steps.py::test_reading_a_run_that_was_never_written_makes_no_file": FILE,
    "test_effect_once.py::test_case_011_a_forked_child_and_its_parent_both_write": RAW,
    "test_effect_once.py::test_two_processes_at_once_pay_once": SPAWNS,
    "test_map.py::test_a_forked_child_never_waits_for_the_parents_workers": FILE,
    "test_retry.py::test_a_clock_that_was_set_back_holds_up_nobody_for_longer_than_the_longest_wait": RAW,
    "test_transaction.py": RAW,
    "test_checkpoint.py::test_a_store_that_cannot_be_read_is_known_at_once": DAMAGE,
    "test_events.py::test_an_event_that_cannot_be_written_is_logged_and_counted_never_raised": SQL,
    "test_events.py::test_lost_events_are_counted_by_the_next_write_that_succeeds": FILE,
    "test_environment.py": FILE,
    "test_steps.py::test_a_result_of_a_run_that_was_deleted_meanwhile_is_handed_back": SQL,
    "test_steps.py::test_no_transaction_is_open_while_user_code_runs": FILE,
    "test_steps.py::test_a_failed_step_whose_failure_cannot_be_stored_raises_its_own_error_with_a_note": FILE,
    "test_steps.py::test_a_result_that_cannot_be_saved_is_handed_over_with_the_error": FILE,
    "test_agent_run.py::test_the_level_of_each_transaction_is_what_was_asked_for": FILE,
    "test_order_and_time.py::test_case_056_events_of_one_frozen_millisecond_keep_their_order": SQL,
    "test_order_and_time.py::test_case_056_processes_that_create_runs_at_once_get_distinct_ids": MANY,
    "test_records.py::test_what_cannot_be_stored_is_refused_and_nothing_is_written": SQL,
    "test_crash_files.py": FILE,
    "test_crash_forks.py": FILE,
    "test_crash_interrupts.py": FILE,
    "test_forks.py": FILE,
    "test_growth.py": FILE,
    "test_house.py::test_opening_a_current_store_never_imports_alembic": FILE,
    "test_statements.py::test_a_store_that_is_there_is_read_and_written_without_sqlalchemy": "a server's are compiled",
    "test_statements.py::test_a_list_is_searched_by_indexes": SQL,
    "test_statements.py::test_the_steps_of_a_list_are_searched_by_their_runs": SQL,
    "test_usage.py::test_tokens_are_summed_by_run_and_by_model": RAW,
    "test_migrations.py": FILE,
    "test_old_files.py": FILE,
    "test_opening.py": FILE,
    "test_manners.py": FILE,
    "test_power_cut.py": FILE,
    "test_contention.py::test_case_007_whatever_leaves_a_transaction_rolls_it_back": FILE,
    "test_contention.py::test_reading_with_plain_sqlite_from_two_processes_then_sigkill_loses_nothing": RAW,
    "test_contention.py::test_a_failing_constraint_in_the_middle_leaves_the_connection_usable": RAW,
    "test_contention.py::test_case_002_a_wait_that_runs_out_is_never_a_silent_stop": FILE,
    "test_contention.py::test_a_stranger_that_reads_all_the_time_stops_nobody": FILE,
}


def sqlite_only(file: str, test: str) -> str | None:
    """Why a test is not for PostgreSQL; None when it is."""
    return SQLITE_ONLY.get(file) or SQLITE_ONLY.get(f"{file}::{test}")
