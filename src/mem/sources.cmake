set(SOURCES plan.c plan_place.c plan_improve.c plan_check.c)
set(TESTS plan_test.c)
