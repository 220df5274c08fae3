set(SOURCES
    early_stop.c
    optim_state_dict.c scaler.c
    schedule.c schedule_dict.c schedule_state.c
    spec_loss.c spec_optim.c spec_params.c
    version.c)
set(TESTS early_stop_test.c optim_state_dict_test.c scaler_test.c schedule_test.c spec_test.c)
# Whole runs: programs, loop, checkpoints.
list(APPEND SOURCES step.c loop.c loop_step.c loop_eval.c loop_report.c checkpoint.c)
list(APPEND TESTS train_test_support.c cases_test.c golden_test.c loop_test.c peak_test.c resume_test.c)
