/* machine.h - the machine's secret: how a server and an agent find out that they share a host. */
#ifndef WIRE_MACHINE_H
#define WIRE_MACHINE_H

#include "base/err.h"

/* SNUG_HOME/machine.id (mode 0600): 32 random hex digits, made by whoever asks first. */
enum status machine_secret(char out[33], struct err *e) NODISCARD;

#endif
