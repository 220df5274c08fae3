/* said.h - what a line of a log or of a report says in words, where a list of words is not enough.
 */
#ifndef DOCTOR_SAID_H
#define DOCTOR_SAID_H

#include <stdbool.h>

/* The line says that memory grows: "GPU usage was growing", "a memory leak", "VRAM goes up". */
bool said_growth(const char *line);

enum said_moment { SAID_NOTHING, SAID_TRAINING, SAID_EVALUATION };
/* What a line begins with, or a progress bar is labelled with: "Valid:", "(valid)", "Epoch [3]". */
enum said_moment said_moment(const char *line);

/* A shell's whole line about a killed process, in the languages that shells speak. */
bool said_killed(const char *line);

#endif
