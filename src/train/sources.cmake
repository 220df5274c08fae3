set(SOURCES
    early_stop.c
    optim_state_dict.c scaler.c
    schedule.c schedule_dict.c schedule_state.c
    spec_loss.c spec_optim.c spec_params.c
    version.c)
