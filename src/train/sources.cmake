set(SOURCES
    early_stop.c
    optim_state_dict.c scaler.c
    schedule.c schedule_dict.c schedule_state.c
    spec_loss.c spec_optim.c spec_params.c)
set(TESTS early_stop_test.c optim_state_dict_test.c scaler_test.c schedule_test.c spec_test.c)
# Whole runs: programs, loop, checkpoints.
list(APPEND SOURCES precision.c levers.c step.c loop.c loop_step.c loop_eval.c loop_report.c checkpoint.c)
list(APPEND TESTS precision_test.c layers_test.c levers_test.c chunk_test.c train_test_support.c cases_test.c golden_test.c loop_test.c peak_test.c reach_test.c resume_test.c)
# How weights and optimizer state are stored.
list(APPEND SOURCES fill.c optim_form.c)
list(APPEND TESTS optim_form_test.c)
