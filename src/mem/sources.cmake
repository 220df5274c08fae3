set(SOURCES plan.c plan_place.c plan_skyline.c plan_improve.c plan_exact.c plan_exact_search.c plan_check.c plan_set.c plan_problem.c source.c device.c device_ask.c sim_spec.c sim_card.c nvml.c slot.c)
set(TESTS plan_test.c plan_set_test.c plan_problem_test.c device_test.c sim_test.c slot_test.c)
set(FUZZ plan_problem_fuzz.c sim_spec_fuzz.c)
# The caching allocator, and the device that is only numbers.
list(APPEND SOURCES virtual.c pool/open.c pool/alloc.c pool/core.c pool/size.c pool/handle.c pool/segment.c pool/expandable.c pool/block_set.c
    pool/events.c pool/private.c pool/stats.c pool/summary.c pool/event.c pool/oom.c pool/snapshot.c pool/check.c pool/conf.c)
list(APPEND TESTS pool/pool_test.c pool/pool_support.c pool/rules_test.c pool/expand_test.c pool/conf_test.c)
list(APPEND FUZZ pool/alloc_conf_fuzz.c)
# The same rules once more, slowly: what random calls are compared with.
list(APPEND TESTS pool/model.c pool/model_test.c pool/thread_test.c)
list(APPEND SOURCES history.c history_parts.c history_write.c doc_out.c)
list(APPEND TESTS history_test.c)
set_source_files_properties(${dir}/plan_exact_search.c ${dir}/pool/core.c ${dir}/pool/alloc.c PROPERTIES COMPILE_OPTIONS -O3)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
set(LIBS ${CMAKE_DL_LIBS} Threads::Threads)
