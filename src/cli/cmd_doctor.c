/* cmd_doctor.c - `snug doctor`: why memory ran out, from what was left behind: an error text, a
 * log, a memory summary, nvidia-smi's output, a snapshot. */
#include "cli/answer.h"
#include "cli/commands.h"

#include "doctor/doctor.h"
#include "doctor/report.h"

int cmd_doctor(const struct args *a)
{
    struct err e = {0};
    json_t *d = NULL;
    int rc = 0;
    enum status st = doctor_diagnose(a->argument[0], NULL, &d, &e);
    if (st == ST_OK && !a->json) {
        struct str out;
        str_init(&out);
        report_text(d, &out);
        rc = answer_text(out.data);
        str_release(&out);
        json_decref(d);
        d = NULL;
    }
    int end = answer_end(a->json, st, &e, d);
    return end ? end : rc;
}
