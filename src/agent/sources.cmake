set(SOURCES folder.c output.c supervisor.c supervisor_work.c supervisor_end.c spawner.c agent.c agent_runs.c agent_warm.c agent_orders.c agent_report.c agent_read.c agent_devices.c)
set(TESTS supervisor_test.c agent_test.c fake_server.c)
snug_embed(torch_hook ${dir}/torch_hook.py ${CMAKE_BINARY_DIR}/gen/agent/torch_hook.c)
set(GENERATED ${CMAKE_BINARY_DIR}/gen/agent/torch_hook.c)
