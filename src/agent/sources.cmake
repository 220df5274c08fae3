set(SOURCES folder.c output.c supervisor.c supervisor_work.c supervisor_end.c)
set(TESTS supervisor_test.c)
snug_embed(torch_hook ${dir}/torch_hook.py ${CMAKE_BINARY_DIR}/gen/agent/torch_hook.c)
set(GENERATED ${CMAKE_BINARY_DIR}/gen/agent/torch_hook.c)
