set(SOURCES args.c answer.c bill.c live.c profile.c commands.c cmd_run.c cmd_plan.c cmd_plan_problem.c cmd_fit.c cmd_validate.c cmd_nodes.c cmd_devices.c cmd_estimate.c cmd_tokenizer.c cmd_doctor.c cmd_replay.c remote.c follow.c events.c queued.c cmd_run_queued.c cmd_runs.c cmd_completions.c variation.c)
set(TESTS args_test.c variation_test.c)
