//! Lull's package under the systemd of a Debian 12, on cgroup v2.
//!
//! The tests run in the order of the table, on one machine; the first four want a machine on
//! which the package never was, and the others settle whatever is left.

mod confined;
mod limits;
mod machine;
mod packages;
mod pressure;
mod selinux;
mod service;

use crate::Tests;

/// On a machine of its own, whose kernel has SELinux in place of AppArmor.
pub(crate) const SELINUX: Tests =
    &[("systemd::a_server_under_selinux_needs_the_module_that_is_shipped", selinux::by_the_module)];

pub(crate) const TESTS: Tests = &[
    ("systemd::the_machine_is_up_without_a_failed_unit", machine::is_up),
    ("systemd::a_new_package_starts_and_enables_nothing", packages::install),
    ("systemd::without_a_config_a_start_is_skipped_and_is_no_failure", packages::no_config),
    ("systemd::the_service_is_active_once_the_agent_is_ready", service::ready),
    ("systemd::units_are_attached_and_again_after_their_restart", service::restarts),
    ("systemd::units_of_a_glob_come_and_go", service::instances),
    ("systemd::an_app_of_a_masked_unit_waits_until_it_is_unmasked_and_started", service::masked),
    ("systemd::a_reload_of_systemd_leaves_agent_and_knobs_alone", service::daemon_reload),
    ("systemd::a_reload_takes_a_new_config_over_and_leaves_a_broken_one", service::reload),
    ("systemd::a_broken_config_is_a_failed_start_that_is_not_tried_again", service::broken_config),
    ("systemd::a_stopped_agent_is_undone_by_its_guard_and_started_again", service::stopped),
    ("systemd::the_watchdog_undoes_an_agent_whose_guard_has_ended", service::watchdog),
    ("systemd::limits_of_a_unit_are_held_and_restored_without_a_trace", limits::held),
    ("systemd::a_reload_of_systemd_keeps_limits_that_lull_holds", limits::reloaded),
    ("systemd::limits_that_a_drop_in_undoes_at_a_reload_are_set_again", limits::overridden),
    ("systemd::limits_that_their_owner_sets_meanwhile_are_left_alone", limits::of_the_owner),
    ("systemd::limits_of_a_killed_holder_are_restored_by_guard_or_by_hand", limits::killed),
    ("systemd::without_systemd_limits_are_files_of_the_cgroup", limits::without_systemd),
    ("systemd::memory_pressure_of_a_unit_takes_cores_from_best_effort", pressure::steers),
    ("systemd::a_server_of_a_unit_is_attached_by_a_drop_in", limits::drop_in),
    (
        "systemd::a_server_that_a_unit_executes_as_another_user_maps_its_page",
        limits::drop_in_of_a_user,
    ),
    ("systemd::a_confined_server_needs_two_rules_of_its_profile", confined::by_a_profile),
    ("systemd::an_upgrade_restarts_the_agent_and_keeps_config_and_records", packages::upgrade),
    ("systemd::a_downgrade_works_as_an_upgrade", packages::downgrade),
    ("systemd::a_read_only_var_is_a_failed_start_that_changes_nothing", service::read_only_var),
    ("systemd::a_full_run_is_a_failed_start_that_changes_nothing", service::full_run),
    ("systemd::a_removed_package_restores_knobs_first", packages::remove_running),
    ("systemd::a_removed_package_restores_what_killed_agents_left", packages::remove_killed),
    ("systemd::a_purged_package_leaves_config_and_records", packages::purge),
    ("systemd::an_rpm_is_installed_upgraded_and_removed_alike", packages::of_rpm),
];
