set(SOURCES
    early_stop.c
    optim_state_dict.c scaler.c
    schedule.c schedule_dict.c schedule_state.c
    spec_loss.c spec_optim.c spec_params.c
    version.c)
set(TESTS early_stop_test.c optim_state_dict_test.c scaler_test.c schedule_test.c spec_test.c)
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} rev-parse --short=12 HEAD
    OUTPUT_VARIABLE SNUG_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(SNUG_COMMIT)
    set_source_files_properties(${dir}/version.c PROPERTIES
        COMPILE_DEFINITIONS SNUG_COMMIT="${SNUG_COMMIT}")
endif()
# Whole runs: programs, loop, checkpoints.
list(APPEND SOURCES precision.c levers.c step.c loop.c loop_step.c loop_eval.c loop_report.c checkpoint.c)
list(APPEND TESTS precision_test.c layers_test.c levers_test.c chunk_test.c train_test_support.c cases_test.c golden_test.c loop_test.c peak_test.c reach_test.c resume_test.c)
# How weights and optimizer state are stored.
list(APPEND SOURCES fill.c optim_form.c)
list(APPEND TESTS optim_form_test.c)
