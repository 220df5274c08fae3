/* text_test.c - texts as facts: messages of every wording, tables, prefixes, escapes; what verdicts
 * may advise and what not. */
#include "doctor/doctor.h"
#include "doctor/report.h"
#include "doctor/said.h"
#include "doctor/text_line.h"

#include "base/env.h"

#include "test.h"

#include <stdio.h>
#include <string.h>

static struct text_reader *read_text(const char *text)
{
    struct text_reader *r = text_reader_new();
    text_reader_feed(r, text, strlen(text));
    (void)text_reader_end(r);
    return r;
}

static struct verdict judge(const char *text, struct evidence *v)
{
    struct verdict out;
    struct text_reader *r = read_text(text);
    evidence_from_text(text_reader_end(r), SIZE_MAX, v);
    (void)verdict_of(v, &out);
    text_reader_free(r);
    return out;
}

static bool advises(const struct verdict *d, const char *id)
{
    for (int i = 0; i < d->n_remedies; i++)
        if (strcmp(d->remedies[i].id, id) == 0)
            return true;
    return false;
}

static int place(const struct verdict *d, const char *id)
{
    for (int i = 0; i < d->n_remedies; i++)
        if (strcmp(d->remedies[i].id, id) == 0)
            return i;
    return 1000;
}

#define MIB(x) ((int64_t)((x)*1048576.0 + 0.5))
#define GIB(x) ((int64_t)((x)*1073741824.0 + 0.5))
#define OLD                                                                                        \
    "RuntimeError: CUDA out of memory. Tried to allocate 1.65 GiB (GPU 1; 7.79 GiB total "         \
    "capacity; 3.53 GiB already allocated; 1.40 GiB free; 5.28 GiB reserved in total by PyTorch)"
#define FULL                                                                                       \
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 23.69 GiB of "  \
    "which 1.20 GiB is free. Process 77 has 3.25 GiB memory in use. Including non-PyTorch "        \
    "memory, "                                                                                     \
    "this process has 19.22 GiB memory in use. Of the allocated memory 18.10 GiB is allocated by " \
    "PyTorch, with 1.50 GiB allocated in private pools (e.g., CUDA Graphs), and 500.00 MiB is "    \
    "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "        \
    "setting "                                                                                     \
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
#define CAPACITY                                                                                   \
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity; 20.10 GiB "  \
    "already allocated; 1.20 GiB free; 20.90 GiB reserved in total by PyTorch)"

static const char full[] = FULL;

TEST(message_old, "T4: the text of 1.4 to 2.0 as numbers")
{
    struct evidence v;
    struct verdict d = judge(OLD "\n", &v);
    CHECK(v.has_message && v.device == 1 && v.era == ERA_RESERVED);
    CHECK_EQ(v.total.bytes, GIB(7.79));
    CHECK_EQ(v.reserved.bytes, GIB(5.28));
    CHECK_EQ(v.gap.bytes, v.request.bytes - v.free.bytes);
    CHECK(d.kind == OOM_FRAGMENTATION);
}

TEST(message_new, "T4: the text of 2.4 with processes and private pools as numbers")
{
    struct evidence v;
    (void)judge("[rank3]: torch.OutOfMemoryError: " FULL "\n", &v);
    CHECK(v.era == ERA_NEW && v.device == 3 && v.rank == 3 && v.hint_expandable && !v.truncated);
    CHECK_EQ(v.own.bytes, GIB(19.22));
    CHECK_EQ(v.other.bytes, GIB(3.25));
    CHECK_EQ(v.private_pools.bytes, GIB(1.5));
    CHECK_EQ(v.reserved.bytes, GIB(18.10) + MIB(500));
    CHECK_STR(v.backend, "cuda");
}

TEST(message_cached, "T4: 1.0 to 1.3 print what is held and not used")
{
    struct evidence v;
    (void)judge(
        "CUDA out of memory. Tried to allocate 1.86 GiB (GPU 0; 31.72 GiB total capacity; 24.58 "
        "GiB "
        "already allocated; 1.28 GiB free; 5.08 GiB cached)",
        &v);
    CHECK(v.era == ERA_CACHED);
    CHECK_EQ(v.reserved.bytes, GIB(24.58) + GIB(5.08));
}

TEST(message_own_line, "T4: in a container one line of a foreign process is this process")
{
    struct evidence v;
    struct verdict d = judge(
        "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 15.77 GiB "
        "of "
        "which 32.38 MiB is free. Process 562167 has 15.25 GiB memory in use. Of the allocated "
        "memory "
        "14.50 GiB is allocated by PyTorch, and 90.10 MiB is reserved by PyTorch but unallocated.",
        &v);
    CHECK(v.own_from_process && v.own.bytes == GIB(15.25));
    CHECK(d.kind == OOM_CAPACITY);
}

TEST(message_distrusted, "T4: 2^64 bytes and 0 bytes in use are unknown")
{
    struct evidence v;
    (void)judge(
        "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 8.00 GiB "
        "of "
        "which 0 bytes is free. Process 9 has 17179869184.00 GiB memory in use. Including "
        "non-PyTorch "
        "memory, this process has 0 bytes memory in use. Of the allocated memory 6.90 GiB is "
        "allocated "
        "by PyTorch, and 210.00 MiB is reserved by PyTorch but unallocated.",
        &v);
    CHECK(!amount_known(v.own) && v.n_processes == 0 && amount_known(v.reserved));
    CHECK_EQ(v.free.bytes, 0);
}

TEST(amounts, "T4: sizes with the interval that rounding leaves")
{
    static const struct {
        const char *text;
        int64_t bytes, low, high;
    } rows[] = {
        {"1024 bytes", 1024, 1024, 1024},
        {"1024.00 MiB", MIB(1024), MIB(1023.995), MIB(1024.005)},
        {"1.39 GiB", GIB(1.39), GIB(1.385), GIB(1.395)},
        {"2.00MiB", MIB(2), MIB(1.995), MIB(2.005)},
        {"5 GB", GIB(5), 4500000000, GIB(5.5)},
        {"1,024 bytes", 1024, 1024, 1024}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *s = rows[i].text;
        struct amount a;
        CHECK(amount_read(&s, 0, &a) == AMOUNT_WHOLE && !*s);
        CHECK_EQ(a.bytes, rows[i].bytes);
        CHECK(a.low >= rows[i].low - 1 && a.low <= rows[i].low + 1);
        CHECK(a.high >= rows[i].high - 1 && a.high <= rows[i].high + 1);
    }
}

TEST(cut_anywhere, "T4: a message that ends at any character gives what was there, and never less")
{
    char text[sizeof FULL + 2];
    for (size_t n = 0; n < strlen(FULL); n++) {
        struct evidence v;
        memcpy(text, FULL, n);
        memcpy(text + n, "\n", 2);
        struct verdict d = judge(text, &v);
        CHECK(!amount_known(v.total) || v.total.bytes == GIB(23.69));
        CHECK(!amount_known(v.request) || v.request.bytes == GIB(2));
        CHECK(n < 60 || v.has_message);
        CHECK(n < 60 || d.rule);
    }
}

TEST(wrapped_anywhere, "T4: a message wrapped at any width is the same")
{
    for (size_t width = 1; width < 100; width += width < 20 ? 1 : 7) {
        struct str s;
        struct evidence v;
        str_init(&s);
        for (size_t i = 0; i < strlen(FULL); i += width) {
            size_t left = strlen(FULL) - i;
            str_add_n(&s, full + i, left < width ? left : width);
            str_add(&s, "\r\n");
        }
        (void)judge(s.data, &v);
        if (width >= 12) /* narrower ones have too many lines to be one message */
            CHECK_EQ(v.own.bytes, GIB(19.22));
        str_release(&s);
    }
}

TEST(ranks, "T4: four ranks interleaved line by line are four messages")
{
    struct str s;
    str_init(&s);
    for (int part = 0; part < 5; part++)
        for (int rank = 0; rank < 4; rank++) {
            size_t each = strlen(FULL) / 5 + 1, from = (size_t)part * each;
            size_t n = strlen(FULL) - from < each ? strlen(FULL) - from : each;
            str_printf(&s, "[rank%d]: %.*s\n", rank, (int)n, full + from);
        }
    struct text_reader *r = read_text(s.data);
    const struct text_facts *f = text_reader_end(r);
    CHECK_EQ(f->messages.n, 4);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(f->messages.data[i].m.own.bytes, GIB(19.22));
        CHECK(f->messages.data[i].rank >= 0 && f->messages.data[i].rank < 4);
    }
    text_reader_free(r);
    str_release(&s);
}

TEST(prefixes, "T4: what launchers and loggers put before a line")
{
    static const struct {
        const char *line, *rest;
        int rank;
    } rows[] = {
        {"[rank12]: x", "x", 12},
        {"[default3]:[rank7]: x", "x", 7},
        {"[1,2]<stderr>:x", "x", 2},
        {"5: x", "x", 5},
        {"(VllmWorker rank=1 pid=42) ERROR 04-01 23:46:56 [engine.py:160] x", "x", 1},
        {"2024-05-01T10:00:00.123Z stderr F x", "x", -1},
        {"2024-05-01 10:00:00,123 - ERROR - x", "ERROR - x", -1},
        {"x: y", "x: y", -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct line_head h;
        const char *rest = line_head_read(rows[i].line, &h);
        CHECK_EQ(h.rank, rows[i].rank);
        CHECK(strstr(rest, rows[i].rest) || strcmp(rest, "x") == 0);
    }
}

TEST(traceback, "T3: the last frame of the user's code, and what the program was doing")
{
    struct text_reader *r = read_text(
        "Traceback (most recent call last):\n"
        "  File \"/home/u/train.py\", line 88, in <module>\n    main()\n"
        "  File \"/home/u/train.py\", line 50, in main\n    scaler.scale(loss).backward()\n"
        "  File \"/usr/lib/python3/site-packages/torch/_tensor.py\", line 521, in backward\n"
        "    torch.autograd.backward(\n"
        "  File \"/usr/lib/python3/site-packages/torch/utils/checkpoint.py\", line 9, in forward\n"
        "    outputs = ctx.run_function(*args)\n" OLD "\n");
    const struct text_facts *f = text_reader_end(r);
    CHECK_EQ(f->messages.n, 1);
    const struct text_message *m = &f->messages.data[0];
    CHECK(m->has_trace && m->phase == MOMENT_BACKWARD && (m->hints & HINT_CHECKPOINT));
    CHECK_STR(m->user.file, "/home/u/train.py");
    CHECK_EQ(m->user.line, 50);
    CHECK_STR(m->user.code, "scaler.scale(loss).backward()");
    text_reader_free(r);
}

TEST(summary_units, "T4: a memory summary in old units, and abbreviated")
{
    struct text_reader *r = read_text(
        "|                  PyTorch CUDA memory summary, device ID 2                 |\n"
        "|            CUDA OOMs: 3            |        cudaMalloc retries: 4         |\n"
        "| Allocated memory      |    7421 MB |    7424 MB |   54101 MB |   46680 MB |\n"
        "| GPU reserved memory   |    7520 MB |    7520 MB |    7520 MB |       0 B  |\n"
        "| Non-releasable memory |   98900 KB |  120000 KB |    9210 MB |    9111 MB |\n"
        "| Allocations           |    1033    |    1040    |      30 K  |      29 K  |\n\n");
    const struct text_facts *f = text_reader_end(r);
    CHECK_EQ(f->summaries.n, 1);
    const struct summary *s = &f->summaries.data[0];
    CHECK(s->old_units && s->device == 2 && s->ooms == 3 && s->retries == 4);
    CHECK_EQ(s->allocated.current.low, MIB(7421));
    CHECK_EQ(s->allocated.current.high, MIB(7422) - 1);
    CHECK_EQ(s->inactive_split.current.low, 98900 * 1024);
    CHECK_EQ(s->allocations.allocated.low, 30000);
    text_reader_free(r);
}

TEST(smi_table, "T4: nvidia-smi's table: cards, use, processes")
{
    struct text_reader *r = read_text(
        "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |\n"
        "|   1  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |        0 |\n"
        "| N/A   61C    P0            300W /  400W |   79012MiB /  81920MiB |     98%  |\n"
        "| Processes:                                                              |\n"
        "|    1   N/A  N/A     11320      C   python                      52010MiB |\n");
    const struct smi *s = &text_reader_end(r)->smi;
    CHECK(s->seen && s->n_gpus == 1 && s->n_processes == 1);
    CHECK_EQ(s->gpu[0].index, 1);
    CHECK_EQ(s->gpu[0].used.bytes, MIB(79012));
    CHECK_EQ(s->gpu[0].total.bytes, MIB(81920));
    CHECK_EQ(s->gpu[0].utilisation, 98);
    CHECK_STR(s->gpu[0].name, "NVIDIA A100-SXM4-80GB");
    CHECK_EQ(s->process[0].pid, 11320);
    CHECK_STR(s->process[0].name, "python");
    text_reader_free(r);
}

TEST(advice_limits, "T5 T6: allocator settings only for fragmentation, and never what is in force")
{
    struct evidence v;
    struct verdict d = judge(CAPACITY, &v);
    CHECK(d.kind == OOM_CAPACITY && !advises(&d, "expandable") && !advises(&d, "max_split"));
    d = judge(OLD, &v);
    CHECK(advises(&d, "expandable") && place(&d, "expandable") < place(&d, "max_split"));
    CHECK(strstr(d.remedies[place(&d, "expandable")].why, "unproven"));
    d = judge("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" OLD, &v);
    CHECK(v.expandable && !advises(&d, "expandable") && !advises(&d, "max_split"));
    d = judge("PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync\n" OLD, &v);
    CHECK(v.async && !advises(&d, "max_split"));
    struct verdict_rule rule;
    for (int i = 0; verdict_rule_at(i, &rule); i++)
        CHECK(rule.kind == OOM_FRAGMENTATION || !strstr(rule.remedies, "max_split"));
}

TEST(advice_order, "T8 T3: the rescue order, without what is in force")
{
    struct evidence v;
    struct verdict d = judge(CAPACITY, &v);
    static const char *const order[] = {"batch", "half", "checkpoint", "offload",
                                        "shard", "lora", "smaller"};
    for (size_t i = 1; i < sizeof order / sizeof *order; i++)
        CHECK(place(&d, order[i - 1]) < place(&d, order[i]));
    d = judge("args: bf16=True, gradient_checkpointing=True, batch_size=1,\n" CAPACITY, &v);
    CHECK(!advises(&d, "half") && !advises(&d, "checkpoint") && !advises(&d, "batch"));
    CHECK(advises(&d, "offload") && advises(&d, "lora"));
}

TEST(checks, "T7: how to see that it is fixed")
{
    struct text_reader *r = read_text(OLD "\n");
    json_t *d = report_text_document(text_reader_end(r), NULL);
    const json_t *list = json_object_get(d, "checks");
    bool iterations = false, peak = false, release = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        iterations = iterations || strstr(s, "several representative iterations");
        peak = peak || strstr(s, "reset and record the peak");
        release = release || strstr(s, "proves nothing: it hands free");
    }
    CHECK(iterations && peak && release);
    json_decref(d);
    text_reader_free(r);
}

TEST(growth_figures, "T3: growth with the figures and the step it takes")
{
    struct evidence v;
    struct str s;
    str_init(&s);
    for (int i = 0; i < 40; i++)
        str_printf(&s, "step %d allocated %d MiB\n", i, 1000 + 50 * i);
    struct verdict d = judge(s.data, &v);
    CHECK(d.kind == OOM_GROWTH && v.growth.rising && v.growth.points == 40);
    CHECK_NEAR(v.growth.per_point, 50.0 * 1048576, 1e5);
    str_clear(&s);
    for (int i = 0; i < 40; i++)
        str_printf(&s, "step %d allocated %d MiB\n", i, i < 2 ? 1000 * (i + 1) : 2000);
    (void)judge(s.data, &v);
    CHECK(!v.growth.rising && v.allocated_flat);
    str_release(&s);
}

static json_t *symptom_of(const char *text, const char *name)
{
    json_t *d = NULL;
    struct err e;
    CHECK_OK(doctor_diagnose_bytes(text, strlen(text), "test", &d, &e), &e);
    const json_t *list = json_object_get(d, "symptoms");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_get_str(json_array_get(list, i), "symptom", ""), name) == 0)
            return d;
    json_decref(d);
    return NULL;
}

static void check_symptom(const char *text, const char *name)
{
    json_t *d = symptom_of(text, name);
    CHECK(d != NULL);
    json_decref(d);
}

TEST(symptoms_log, "T9 P10: a loss that is not finite, a scale that falls, in logs")
{
    check_symptom("step 1 loss 0.5\nstep 2 loss 0.4\nstep 3 loss nan\n", "loss_not_finite");
    check_symptom("step 1 loss: 0.5\nstep 2 loss: inf\n", "loss_not_finite");
    struct str s;
    str_init(&s);
    for (int scale = 65536; scale >= 8; scale /= 2)
        str_printf(&s, "Gradient overflow. Skipping step, reducing loss scale to %d.0\n", scale);
    check_symptom(s.data, "falling_scale");
    str_release(&s);
}

TEST(symptoms_runs, "T9 P12: two runs of ours compared: saving, speed, convergence")
{
    static const char two[] =
        "{\"schema\": 1, \"status\": \"succeeded\", \"error\": null, \"peak_bytes_measured\": "
        "4000000,\n"
        " \"metrics\": {\"precision\": \"fp32\", \"images_per_s\": 400, \"losses\": [2, 1, 0.5]}}\n"
        "{\"schema\": 1, \"status\": \"succeeded\", \"error\": null, \"peak_bytes_measured\": "
        "3900000,\n"
        " \"metrics\": {\"precision\": \"bf16\", \"images_per_s\": 250, \"losses\": [2, 1.5, "
        "0.9]}}\n";
    check_symptom(two, "precision_saves_little");
    check_symptom(two, "precision_is_slower");
    check_symptom(two, "bf16_converges_worse");
    json_t *d = symptom_of(two, "falling_scale");
    CHECK(d == NULL);
}

static void check_own(const char *oom, const char *kind)
{
    struct str s;
    json_t *d = NULL;
    struct err e;
    str_init(&s);
    str_printf(
        &s,
        "{\"schema\": 1, \"status\": \"failed\", \"error\": {\"code\": \"out_of_memory\", "
        "\"message\": "
        "\"Node TrainingLoop (n7) ran out of memory on cuda:0.\\nWhat to try\", \"node_id\": "
        "\"n7\"}, "
        "\"oom\": %s}\n",
        oom);
    CHECK_OK(doctor_diagnose_bytes(s.data, s.n, "test", &d, &e), &e);
    CHECK_STR(json_get_str(d, "kind", ""), kind);
    CHECK_EQ(json_array_size(json_object_get(d, "planned_changes")), 1);
    json_decref(d);
    str_release(&s);
}

TEST(own_run, "T3 O1: documents of runs of ours that ran out of memory")
{
    static const char advice[] = "\"advice\": [{\"change\": \"bf16\", \"peak_bytes\": 5}]";
    char oom[512];
    (void)snprintf(oom, sizeof oom, "{\"need_bytes\": 4000, \"budget_bytes\": 1000, %s}", advice);
    check_own(oom, "own_limit");
    (void)snprintf(
        oom, sizeof oom,
        "{\"need_bytes\": 4000, \"memory\": {\"capacity_bytes\": 9000, \"free_bytes\": 2000, "
        "\"reserved_bytes\": 0}, %s}",
        advice);
    check_own(oom, "other_process");
    (void)snprintf(
        oom, sizeof oom,
        "{\"need_bytes\": 9500, \"memory\": {\"capacity_bytes\": 9000, \"free_bytes\": 8900, "
        "\"reserved_bytes\": 0}, %s}",
        advice);
    check_own(oom, "capacity");
}

TEST(nothing, "T4: a text without anything says so")
{
    json_t *d = NULL;
    struct err e = {0};
    CHECK(doctor_diagnose_bytes("hello\n", 6, "test", &d, &e) == ST_NOT_FOUND && d == NULL);
    CHECK(strstr(e.text, "no out-of-memory message"));
    CHECK(doctor_diagnose_bytes("", 0, "test", &d, &e) == ST_NOT_FOUND);
}

TEST(long_text, "T4: a long text is read in bounded memory, also one without line ends")
{
    static char chunk[1 << 16];
    struct text_reader *r = text_reader_new();
    memset(chunk, 'a', sizeof chunk);
    int64_t before = process_rss_bytes();
    for (int i = 0; i < 512; i++)
        text_reader_feed(r, chunk, sizeof chunk);
    for (int i = 0; i < 200000; i++) {
        char line[96];
        int n = snprintf(
            line, sizeof line, "[rank%d]: step %d loss 0.5 %s\n", i % 200, i,
            i % 50 ? "" : "Error");
        text_reader_feed(r, line, (size_t)n);
    }
    text_reader_feed(r, OLD "\n", strlen(OLD) + 1);
    const struct text_facts *f = text_reader_end(r);
    CHECK_EQ(f->messages.n, 1);
    CHECK(before < 0 || process_rss_bytes() - before < (int64_t)40 << 20);
    text_reader_free(r);
}

/* Two segments of 20 MiB, half of each free in pieces of 5 MiB; 12 MiB are refused with 1 MiB free.
 */
static char *snapshot_with_oom(const char *free_size)
{
    struct str s;
    str_init(&s);
    str_add(&s, "{\"segments\": [");
    for (int i = 0; i < 2; i++) {
        long long at = 4096ll + i * (64ll << 20);
        str_printf(
            &s,
            "%s{\"device\": 0, \"address\": %lld, \"total_size\": 20971520, \"allocated_size\": "
            "10485760, \"active_size\": 10485760, \"stream\": 0, \"segment_type\": \"large\", "
            "\"blocks\": [",
            i ? "," : "", at);
        for (int b = 0; b < 4; b++)
            str_printf(
                &s,
                "%s{\"address\": %lld, \"size\": 5242880, \"requested_size\": 5242880, \"state\": "
                "\"%s\"}",
                b ? "," : "", at + b * 5242880ll, b % 2 ? "inactive" : "active_allocated");
        str_add(&s, "]}");
    }
    str_printf(
        &s,
        "], \"device_traces\": [[{\"action\": \"oom\", \"size\": 12582912, \"device_free\": %s, "
        "\"stream\": 0, \"time_us\": 5}]]}",
        free_size);
    return str_take(&s);
}

TEST(snapshot_evidence, "T3 T4: a snapshot with an out-of-memory: pieces that would do together")
{
    char *text = snapshot_with_oom("1048576");
    json_t *d = NULL;
    struct err e = {0};
    CHECK_OK(doctor_diagnose_bytes(text, strlen(text), "test", &d, &e), &e);
    const json_t *v = json_object_get(d, "evidence");
    CHECK_EQ(json_get_i64(v, "request_bytes", 0), 12582912);
    CHECK_EQ(json_get_i64(v, "free_sum_bytes", 0), MIB(20));
    CHECK_EQ(json_get_i64(v, "largest_free_bytes", 0), MIB(5));
    CHECK_EQ(json_get_i64(v, "allocated_bytes", 0), MIB(20));
    json_decref(d);
    mem_free(text);
}

TEST(advice_by_card, "P11: fp16 with a scaler where the card has no bfloat16")
{
    struct evidence v;
    struct verdict d = judge("device: Tesla T4\n" CAPACITY, &v);
    CHECK(advises(&d, "half_fp16") && !advises(&d, "half"));
    d = judge("device: NVIDIA A100\n" CAPACITY, &v);
    CHECK(!advises(&d, "half_fp16") && advises(&d, "half"));
}

TEST(said, "T3: what lines say in words: growth, the moment, a killed process")
{
    CHECK(said_growth("GPU memory usage was growing linearly after each step"));
    CHECK(said_growth("constantly increasing GPU memory: a memory leak"));
    CHECK(said_growth("memory continues to increase with every frame"));
    CHECK(!said_growth("tf.config.experimental.set_memory_growth(gpu, True)"));
    CHECK(!said_growth("resource_tracker: 1 leaked shared_memory objects to clean up"));
    CHECK(!said_growth("try to increase memory of the machine"));
    CHECK(said_moment("0/10 * Epoch (valid):   3% 1/32") == SAID_EVALUATION);
    CHECK(said_moment("Val: [0/97] loss 1.2") == SAID_EVALUATION);
    CHECK(said_moment("Epoch: [3][10/5005] Time 0.3") == SAID_TRAINING);
    CHECK(said_moment("Testing 0 input") == SAID_NOTHING);
    CHECK(said_moment("the interval: 3") == SAID_NOTHING);
    CHECK(said_killed("Killed"));
    CHECK(said_killed("已杀死"));
    CHECK(!said_killed("2 workers were Killed by hand yesterday"));
}
