set(SOURCES plan.c plan_place.c plan_skyline.c plan_improve.c plan_exact.c plan_exact_search.c plan_check.c plan_set.c plan_problem.c source.c pool.c)
set(TESTS plan_test.c plan_set_test.c plan_problem_test.c pool_test.c)
set(FUZZ plan_problem_fuzz.c)
set_source_files_properties(${dir}/plan_exact_search.c PROPERTIES COMPILE_OPTIONS -O3)
