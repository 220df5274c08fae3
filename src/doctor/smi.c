/* smi.c - lines of nvidia-smi.
 *
 * STATES (reader.section). OUT -> TABLE with a line of a card, or a head; TABLE -> PROCESSES with
 * "Processes:"; OUT -> LONG with `-q`'s head; OUT -> CSV with a head that names memory columns. */
#include "doctor/smi.h"

#include "base/str.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum section { OUT, TABLE, PROCESSES, LONG, LONG_PROCESS, CSV };

static const struct smi_gpu gpu_unknown = {
    .index = -1,
    .used = {-1, -1, -1},
    .total = {-1, -1, -1},
    .free = {-1, -1, -1},
    .utilisation = -1};

void smi_begin(struct smi_reader *r, struct smi *out)
{
    *r = (struct smi_reader){.out = out, .gpu = -1, .pending = gpu_unknown};
}

bool smi_reading(const struct smi_reader *r)
{
    return r->section != OUT;
}

static bool has(const char *s, const char *what)
{
    return strstr(s, what) != NULL;
}

/* A card's line is whole: it takes the place of the one before. */
static void take_gpu(struct smi_reader *r, int64_t number)
{
    struct smi *s = r->out;
    struct smi_gpu g = r->pending;
    int i = 0;
    r->pending = gpu_unknown;
    if (!amount_known(g.used) && !amount_known(g.total))
        return;
    if (g.index < 0)
        g.index = r->gpu >= 0 ? r->gpu : 0;
    while (i < s->n_gpus && s->gpu[i].index != g.index)
        i++;
    if (i == SMI_GPUS)
        return;
    bool again = i < s->n_gpus;
    if (!again) {
        s->n_gpus++;
        s->first_used[i] = s->most_used[i] = g.used;
    }
    s->samples[i]++;
    s->rises[i] += again && g.used.low > s->gpu[i].used.high;
    if (g.used.bytes > s->most_used[i].bytes)
        s->most_used[i] = g.used;
    if (!g.name[0] && again)
        memcpy(g.name, s->gpu[i].name, sizeof g.name);
    s->gpu[i] = g;
    s->seen = true;
    s->line = number;
}

/* gpustat names users, not numbers. */
static bool same_process(const struct smi_process *a, const struct smi_process *b)
{
    return a->gpu == b->gpu && a->pid == b->pid && (a->pid >= 0 || strcmp(a->name, b->name) == 0);
}

static void take_process(struct smi *s, struct smi_process p)
{
    int i = 0;
    while (i < s->n_processes && !same_process(&s->process[i], &p))
        i++;
    if (i == SMI_PROCESSES)
        return;
    if (i == s->n_processes)
        s->n_processes++;
    s->process[i] = p;
    s->seen = true;
}

/* ---- the table ---- */

/* "|   0  Tesla V100-SXM2...  On   | 00000000:00:1E.0 Off |" */
static bool name_line(struct smi_reader *r, const char *s)
{
    char *end;
    long index = strtol(s + 1, &end, 10);
    if (end == s + 1 || index < 0 || index >= 4096 || *end != ' ' || has(s, "%") || has(s, "MiB"))
        return false;
    const char *bar = strchr(end, '|');
    if (!bar || !has(bar, ":")) /* the bus id */
        return false;
    r->pending = gpu_unknown;
    r->pending.index = r->gpu = (int)index;
    const char *name = end + strspn(end, " "), *stop = name;
    while (stop < bar && !(stop[0] == ' ' && stop[1] == ' '))
        stop++;
    str_copy_trimmed(r->pending.name, sizeof r->pending.name, name, (size_t)(stop - name));
    r->out->wddm = r->out->wddm || has(s, "WDDM");
    return true;
}

/* "| 30%   32C    P8    29W / 350W |   3041MiB / 24576MiB |      0%      Default |" */
static bool use_line(struct smi_reader *r, const char *s, int64_t number)
{
    const char *slash = s;
    while ((slash = strchr(slash, '/'))) {
        const char *from = slash, *to = slash + 1;
        while (from > s && strchr(" MiGBK0123456789.", from[-1]) && from[-1])
            from--;
        from += strspn(from, " ");
        to += strspn(to, " ");
        struct amount used, total;
        if (amount_read(&from, 0, &used) == AMOUNT_WHOLE &&
            amount_read(&to, 0, &total) == AMOUNT_WHOLE) {
            r->pending.used = used;
            r->pending.total = total;
            const char *percent = strchr(to, '%');
            if (percent) {
                while (percent > to && isdigit((unsigned char)percent[-1]))
                    percent--;
                r->pending.utilisation = (int)strtol(percent, NULL, 10);
            }
            take_gpu(r, number);
            return true;
        }
        slash++;
    }
    return false;
}

/* "|    0   N/A  N/A      1234      C   /usr/bin/python3      3041MiB |", older "|    0   1234   C
 * ..." */
static bool process_line(struct smi *out, const char *s)
{
    struct smi_process p = {.gpu = -1, .pid = -1, .used = amount_unknown};
    char *end;
    p.gpu = (int)strtol(s + 1, &end, 10);
    if (end == s + 1)
        return false;
    const char *at = end + strspn(end, " ");
    while (str_starts(at, "N/A"))
        at += 3, at += strspn(at, " ");
    p.pid = strtoll(at, &end, 10);
    if (end == at)
        return false;
    at = end + strspn(end, " ");
    at += strspn(at, "CGM+"); /* the type */
    at += strspn(at, " ");
    const char *bar = strrchr(at, '|');
    if (!bar)
        return false;
    const char *size = bar;
    while (size > at && size[-1] == ' ')
        size--;
    while (size > at && size[-1] != ' ')
        size--;
    str_copy_trimmed(p.name, sizeof p.name, at, (size_t)(size - at));
    if (amount_read(&size, 0, &p.used) != AMOUNT_WHOLE)
        p.used = amount_unknown; /* N/A under WDDM */
    take_process(out, p);
    return true;
}

static bool table_line(struct smi_reader *r, const char *s, int64_t number)
{
    if (has(s, "Processes:")) {
        r->section = PROCESSES;
        r->out->n_processes = 0; /* those of the newest table */
        return true;
    }
    if (r->section == PROCESSES)
        return process_line(r->out, s);
    return name_line(r, s) || use_line(r, s, number);
}

/* ---- nvidia-smi -q ---- */

static bool long_line(struct smi_reader *r, const char *s, int64_t number)
{
    const char *colon = strchr(s, ':');
    const char *value = colon ? colon + 1 + strspn(colon + 1, " ") : "";
    s += strspn(s, " \t");
    if (str_starts(s, "GPU ") && has(s, ":") && isxdigit((unsigned char)s[4])) {
        r->pending = gpu_unknown;
        r->gpu++;
        r->section = LONG;
    } else if (str_starts(s, "Product Name")) {
        str_copy_trimmed(r->pending.name, sizeof r->pending.name, value, strlen(value));
    } else if (str_starts(s, "FB Memory Usage")) {
        r->column_used = 1; /* the next Total, Used, Free are of this */
    } else if (str_starts(s, "BAR1 Memory Usage")) {
        r->column_used = 0;
    } else if (r->column_used && str_starts(s, "Total")) {
        (void)amount_read(&value, 0, &r->pending.total);
    } else if (r->column_used && str_starts(s, "Used ") && has(s, ":")) {
        (void)amount_read(&value, 0, &r->pending.used);
    } else if (r->column_used && str_starts(s, "Free")) {
        (void)amount_read(&value, 0, &r->pending.free);
        r->column_used = 0;
        r->pending.index = r->gpu;
        take_gpu(r, number);
    } else if (str_starts(s, "Process ID")) {
        r->process = (struct smi_process){
            .gpu = r->gpu, .pid = strtoll(value, NULL, 10), .used = amount_unknown};
    } else if (str_starts(s, "Name ")) {
        str_copy_trimmed(r->process.name, sizeof r->process.name, value, strlen(value));
    } else if (str_starts(s, "Used GPU Memory")) {
        if (amount_read(&value, 0, &r->process.used) != AMOUNT_WHOLE)
            r->process.used = amount_unknown;
        take_process(r->out, r->process);
    }
    return colon != NULL || str_starts(s, "FB Memory");
}

/* ---- CSV ---- */

/* The fields of a line, at most `most`; they point into `buf`. */
static int fields(const char *s, char *buf, size_t cap, char **out, int most)
{
    int n = 0;
    str_copy_trimmed(buf, cap, s, strlen(s));
    for (char *p = buf; n < most; p++) {
        p += strspn(p, " ");
        out[n++] = p;
        p = strchr(p, ',');
        if (!p)
            break;
        *p = 0;
    }
    return n;
}

static bool csv_head(struct smi_reader *r, const char *s)
{
    char buf[512], *f[24];
    if (!has(s, ",") ||
        !(has(s, "memory.used") || has(s, "used_memory") || has(s, "used_gpu_memory")))
        return false;
    r->columns = fields(s, buf, sizeof buf, f, 24);
    r->column_used = r->column_total = r->column_free = r->column_name = -1;
    r->column_index = r->column_util = r->column_pid = r->column_process = -1;
    for (int i = 0; i < r->columns; i++) {
        if (has(f[i], "memory.used") || has(f[i], "used_memory") || has(f[i], "used_gpu_memory"))
            r->column_used = i;
        else if (has(f[i], "memory.total"))
            r->column_total = i;
        else if (has(f[i], "memory.free"))
            r->column_free = i;
        else if (has(f[i], "process_name"))
            r->column_process = i;
        else if (str_starts(f[i], "pid"))
            r->column_pid = i;
        else if (str_starts(f[i], "name") || has(f[i], "gpu_name"))
            r->column_name = i;
        else if (str_starts(f[i], "index"))
            r->column_index = i;
        else if (has(f[i], "utilization.gpu"))
            r->column_util = i;
    }
    r->gpu = -1;
    r->section = CSV;
    return true;
}

static struct amount csv_size(char *const *f, int column)
{
    struct amount a = amount_unknown;
    if (column >= 0) {
        const char *s = f[column];
        (void)amount_read(&s, 1 << 20, &a);
    }
    return a;
}

static bool csv_line(struct smi_reader *r, const char *s, int64_t number)
{
    char buf[512], *f[24];
    if (fields(s, buf, sizeof buf, f, 24) != r->columns)
        return false;
    struct amount used = csv_size(f, r->column_used);
    if (r->column_pid >= 0) {
        struct smi_process p = {.gpu = -1, .used = used};
        p.pid = strtoll(f[r->column_pid], NULL, 10);
        if (r->column_process >= 0)
            str_copy_trimmed(
                p.name, sizeof p.name, f[r->column_process], strlen(f[r->column_process]));
        take_process(r->out, p);
        return true;
    }
    if (!amount_known(used))
        return false;
    r->pending = gpu_unknown;
    r->pending.used = used;
    r->pending.total = csv_size(f, r->column_total);
    r->pending.free = csv_size(f, r->column_free);
    if (r->column_name >= 0)
        str_copy_trimmed(
            r->pending.name, sizeof r->pending.name, f[r->column_name], strlen(f[r->column_name]));
    if (r->column_index >= 0)
        r->pending.index = (int)strtol(f[r->column_index], NULL, 10);
    if (r->column_util >= 0)
        r->pending.utilisation = (int)strtol(f[r->column_util], NULL, 10);
    take_gpu(r, number);
    return true;
}

/* A row of `--format=csv,noheader`: its first two sizes are used and total, an integer before them
 * the index. */
static bool headless_line(struct smi_reader *r, const char *s, int64_t number)
{
    char buf[512], *f[24];
    struct amount size[2];
    int n = fields(s, buf, sizeof buf, f, 24), sizes = 0;
    r->pending = gpu_unknown;
    for (int i = 0; i < n && sizes < 2; i++) {
        const char *p = f[i];
        char *end;
        long index = strtol(f[i], &end, 10);
        if (strstr(f[i], "MiB") && amount_read(&p, 0, &size[sizes]) == AMOUNT_WHOLE)
            sizes++;
        else if (end > f[i] && !*end && index >= 0 && index < 64 && r->pending.index < 0)
            r->pending.index = (int)index;
    }
    if (sizes < 2 || size[0].bytes > size[1].bytes)
        return false;
    r->pending.used = size[0];
    r->pending.total = size[1];
    if (r->pending.index < 0)
        r->pending.index = 0;
    take_gpu(r, number);
    return true;
}

/* gpustat: "[0] NVIDIA RTX 3090 | 65'C,  98 % | 23010 / 24268 MB | ann(12000M) bob(11000M)". */
static bool gpustat_line(struct smi_reader *r, const char *s, int64_t number)
{
    char *end;
    long index = strtol(s + 1, &end, 10);
    const char *bar = strchr(s, '|'), *slash = bar ? strstr(bar, " / ") : NULL;
    if (*end != ']' || index < 0 || index >= 4096 || !slash || !strstr(slash, "MB"))
        return false;
    const char *from = slash;
    while (from > bar && isdigit((unsigned char)from[-1]))
        from--;
    r->pending = gpu_unknown;
    r->pending.index = (int)index;
    str_copy_trimmed(r->pending.name, sizeof r->pending.name, end + 1, (size_t)(bar - end - 1));
    r->pending.used = amount_exact((strtoll(from, NULL, 10) & 0xFFFFFFFF) << 20);
    r->pending.total = amount_exact((strtoll(slash + 3, NULL, 10) & 0xFFFFFFFF) << 20);
    take_gpu(r, number);
    for (const char *p = strstr(slash, "MB |"); p && (p = strchr(p, '(')); p++) {
        struct smi_process one = {.gpu = (int)index, .pid = -1};
        const char *size = p + 1, *name = p;
        while (name > s && !strchr(" |", name[-1]))
            name--;
        str_copy_trimmed(one.name, sizeof one.name, name, (size_t)(p - name));
        if (amount_read(&size, 0, &one.used) == AMOUNT_WHOLE)
            take_process(r->out, one);
    }
    return true;
}

/* ---- the one door ---- */

bool smi_line(struct smi_reader *r, const char *line, int64_t number)
{
    const char *s = line + strspn(line, " \t");
    if (*s == '|') {
        if (has(s, "NVIDIA-SMI") || (has(s, "Memory-Usage") && has(s, "GPU"))) {
            r->section = TABLE;
            return true;
        }
        /* Tables are pasted without their head too. */
        if (r->section != TABLE && r->section != PROCESSES && !has(s, "Processes:")) {
            if (has(s, ".0 O") && name_line(r, s)) { /* a bus id, then Off or On */
                r->section = TABLE;
                return true;
            }
            return has(s, "MiB /") && use_line(r, s, number);
        }
        return table_line(r, s, number);
    }
    if ((*s == '+' || *s == '=') && !has(s, "NVSMI LOG"))
        return r->section == TABLE || r->section == PROCESSES;
    if (*s == '[' && has(s, " MB") && gpustat_line(r, s, number))
        return true;
    if (has(s, "NVSMI LOG")) {
        r->section = LONG;
        r->gpu = -1;
        return true;
    }
    if (csv_head(r, s))
        return true;
    if (r->section != CSV && has(s, " MiB, ") && headless_line(r, s, number))
        return true;
    if (r->section == CSV && csv_line(r, s, number))
        return true;
    if ((r->section == LONG || r->section == LONG_PROCESS) && long_line(r, s, number))
        return true;
    if (r->section == CSV || (s[0] && (r->section == TABLE || r->section == PROCESSES)))
        r->section = OUT;
    return false;
}
