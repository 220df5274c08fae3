/* machine.h - the machine's secret: how a server and an agent find out that they share a host. */
#ifndef WIRE_MACHINE_H
#define WIRE_MACHINE_H

#include "base/err.h"

/* SNUG_HOME/machine.id (mode 0600) has 32 random hex digits, made by whoever asks first. The secret
 * is made of them, of the place of that very file and of this boot: a copy of the folder, or of the
 * whole machine, is not taken for the agent that it was copied from. */
enum status machine_secret(char out[33], struct err *e) NODISCARD;

#endif
