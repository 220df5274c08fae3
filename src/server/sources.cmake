# One line a file or a family; add yours where its family stands.
set(SOURCES
    http.c http_links.c http_answer.c http_wake.c http_guard.c http_reply.c http_request.c http_body.c http_multipart.c
    http_upload.c http_bare.c http_test_support.c routes.c routes_table.c page.c
    secret.c auth.c config.c route_health.c route_system.c route_docs.c route_events.c
    route_graphs.c route_plan.c asker.c webhook.c feed.c route_files.c graph_files.c files.c server.c server_builtin.c
    placement.c placement_fit.c placement_judge.c placement_limits.c placement_text.c placement_world.c
    store.c store_sql.c store_schema.c store_runs.c store_logs.c store_workers.c
    store_sweeps.c sweep_plan.c sweep.c study.c study_step.c study_read.c
    route_sweeps.c route_studies.c
    catalog.c catalog_presets.c function.c route_catalog.c route_graph_run.c route_outputs.c
    core.c core_agent.c core_budget.c core_events.c core_graph.c core_map.c core_options.c core_orders.c core_pass.c
    core_read.c core_report.c core_run.c core_submit.c core_workers.c core_ssh.c ssh.c
    route_runs.c route_workers.c route_agent.c route_budget.c retention.c
    aliases.c ws.c ws_frames.c ws_link.c ws_talk.c ws_test_support.c)
set(TESTS
    http_test.c http_slow_test.c http_wake_test.c attack_test.c auth_test.c routes_test.c server_test.c
    placement_test.c placement_memory_test.c placement_random_test.c
    ../../tests/sim/reference.c ../../tests/sim/scene.c
    store_test.c store_fault_test.c fault_vfs.c sweep_plan_test.c sweep_test.c study_test.c
    catalog_test.c
    function_test.c
    core_test.c core_hold_test.c core_options_test.c core_agent_test.c core_lane_test.c core_share_test.c
    core_load_test.c core_fault_test.c core_thread_test.c retention_test.c core_test_support.c
    ws_test.c ws_live_test.c)
set(FUZZ
    router_fuzz.c
    ws_fuzz.c)
set(LIBS PkgConfig::JANSSON PkgConfig::MICROHTTPD PkgConfig::SQLITE PkgConfig::CURL PkgConfig::GNUTLS
    PkgConfig::UTF8PROC ZLIB::ZLIB ${WSLAY_LIBRARY})
