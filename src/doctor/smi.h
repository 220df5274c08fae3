/* smi.h - what nvidia-smi prints, anywhere in a text: its table in the forms of drivers since 2014,
 * the processes under it, `-q`, and `--query-gpu` or `--query-compute-apps` as CSV.
 */
#ifndef DOCTOR_SMI_H
#define DOCTOR_SMI_H

#include "doctor/amount.h"

#include <stdbool.h>
#include <stdint.h>

enum { SMI_GPUS = 64, SMI_PROCESSES = 128 };

struct smi_gpu {
    int index; /* -1 unknown */
    char name[48];
    struct amount used, total, free;
    int utilisation; /* percent; -1 unknown */
    bool mig;
};
struct smi_process {
    int gpu;     /* -1 unknown */
    int64_t pid; /* -1 unknown */
    char name[64];
    struct amount used;
};
/* The last of each card; `first_used` to `samples` say how use went over repeated prints. */
struct smi {
    int n_gpus, n_processes;
    struct smi_gpu gpu[SMI_GPUS];
    struct smi_process process[SMI_PROCESSES];
    int samples[SMI_GPUS]; /* prints of this card */
    struct amount first_used[SMI_GPUS], most_used[SMI_GPUS];
    int rises[SMI_GPUS]; /* prints above the one before */
    bool wddm;           /* Windows' display driver: processes' use is not known */
    int64_t line;        /* of the last table */
    bool seen;
};

struct smi_reader {
    struct smi *out;
    int section; /* private */
    int gpu, column_used, column_total, column_free, column_name, column_index, column_util;
    int column_pid, column_process, columns;
    struct smi_gpu pending;
    struct smi_process process;
};
void smi_begin(struct smi_reader *r, struct smi *out);
/* Whether it is within a table or list; where not, only lines with a word of nvidia-smi matter. */
bool smi_reading(const struct smi_reader *r);
/* True where the line is nvidia-smi's. */
bool smi_line(struct smi_reader *r, const char *line, int64_t number);

#endif
