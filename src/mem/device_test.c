/* device_test.c - device strings, the fallback rule, labels, NVML through a table. */
#include "mem/device.h"

#include "mem/nvml.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

/* A list of n cards that run, from a description; the folder is the test's own. */
static void open_cards(struct devices *d, const char *text)
{
    struct err e;
    CHECK(setenv("SNUG_HOME", test_dir(), 1) == 0 && unsetenv("SNUG_SIM_DIR") == 0);
    CHECK(setenv("SNUG_SIM_CARDS", text, 1) == 0);
    CHECK_OK(devices_open(d, &e), &e);
}

static const char two[] = "RTX 4090:24GiB:sm89, RTX 3060:12GiB:sm86:others=3GiB";

TEST(strings, "D2: what each device string asks for")
{
    static const struct {
        const char *text;
        enum device_ask ask;
        int index;
    } rows[] = {
        {"auto", ASK_AUTO, 0},
        {"cpu", ASK_CPU, 0},
        {"cuda", ASK_CUDA, 0},
        {"cuda:0", ASK_CUDA_INDEX, 0},
        {"cuda:12", ASK_CUDA_INDEX, 12},
        {"cuda:9999", ASK_CUDA_INDEX, 9999},
        {"mps", ASK_MPS, 0},
        {"mps:0", ASK_MPS, 0},
        {"cuda:", ASK_CUDA_BROKEN, 0},
        {"cuda:abc", ASK_CUDA_BROKEN, 0},
        {"cuda:${CUDA_INDEX}", ASK_CUDA_BROKEN, 0},
        {"${CUDA_INDEX}", ASK_CUDA_BROKEN, 0},
        {"${DEVICE}", ASK_UNKNOWN, 0},
        {"cuda:0:1", ASK_CUDA_BROKEN, 0},
        {"cuda: 0", ASK_CUDA_BROKEN, 0},
        {"cuda:-1", ASK_CUDA_BROKEN, 0},
        {"cuda:+1", ASK_CUDA_BROKEN, 0},
        {"cuda:01", ASK_CUDA_BROKEN, 0},
        {"cuda:0 ", ASK_CUDA_BROKEN, 0},
        {"cuda:99999999999999999999", ASK_CUDA_BROKEN, 0},
        {"cuda0", ASK_CUDA_BROKEN, 0},
        {"", ASK_UNKNOWN, 0},
        {"banana", ASK_UNKNOWN, 0},
        {"CPU", ASK_UNKNOWN, 0},
        {" cuda", ASK_UNKNOWN, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int index = -1;
        if (device_parse(rows[i].text, &index) != rows[i].ask || index != rows[i].index)
            test_fail(__FILE__, __LINE__, "\"%s\" is read otherwise", rows[i].text);
    }
}

static void check_choice(
    struct devices *d, const char *text, const struct device_asker *who, const char *id,
    const char *warning)
{
    struct device_choice c = devices_choose(d, text, NULL, who);
    CHECK_STR(c.device->id, id);
    CHECK(c.fell_back == (warning != NULL));
    CHECK_STR(c.warning, warning ? warning : "");
}

TEST(fallback, "D2: an index that is not there, and strings without one, give the current card")
{
    struct devices d;
    struct device_asker node = {
        .graph = "demo", .node = "train", .type = "TrainingLoop", .param = "device"};
    struct device_asker option = {.option = "--device"};
    struct device_asker setting = {.graph = "demo", .param = "settings.device"};
    open_cards(&d, two);
    check_choice(&d, "cpu", &node, "cpu", NULL);
    check_choice(&d, "cuda", &node, "cuda:0", NULL);
    check_choice(&d, "cuda:1", &node, "cuda:1", NULL);
    check_choice(&d, "auto", &node, "cuda:0", NULL);
    CHECK(devices_choose(&d, "auto", &d.list[2], &node).device == &d.list[2]);
    check_choice(
        &d, "cuda:3", &node, "cuda:0",
        "Node train (TrainingLoop) is set to device cuda:3; this machine has 2 CUDA cards (cuda:0, "
        "cuda:1), so it runs on cuda:0.");
    check_choice(
        &d, "cuda:${CUDA_INDEX}", &node, "cuda:0",
        "Node train (TrainingLoop) of graph \"demo\" has parameter 'device' set to "
        "\"cuda:${CUDA_INDEX}\", which addresses no card; this machine has 2 CUDA cards (cuda:0, "
        "cuda:1), so it runs on cuda:0.");
    check_choice(
        &d, "cuda:2", &setting, "cuda:0",
        "settings.device of graph \"demo\" is set to cuda:2; this machine has 2 CUDA cards "
        "(cuda:0, "
        "cuda:1), so it runs on cuda:0.");
    check_choice(
        &d, "cuda:7", &option, "cuda:0",
        "--device asks for cuda:7; this machine has 2 CUDA cards (cuda:0, cuda:1), so it runs on "
        "cuda:0.");
    check_choice(
        &d, "mps", &option, "cpu",
        "--device asks for mps; this machine has no MPS device, so it runs on the CPU.");
    devices_close(&d);
}

TEST(no_cards, "D4: without a card everything runs on the CPU, and says so")
{
    struct devices d = {.n = 1};
    struct device_asker option = {.option = "--device"};
    d.list[0] = (struct device){.kind = DEVICE_CPU, .id = "cpu", .runs = true};
    check_choice(&d, "auto", &option, "cpu", NULL);
    check_choice(
        &d, "cuda", &option, "cpu",
        "--device asks for cuda; this machine has no CUDA card, so it runs on the CPU.");
    check_choice(
        &d, "cuda:x", &option, "cpu",
        "--device asks for \"cuda:x\", which addresses no card; this machine has no CUDA card, so "
        "it "
        "runs on the CPU.");
}

static void check_row(const json_t *menu, size_t i, const char *value, const char *label)
{
    const json_t *row = json_array_get(menu, i);
    CHECK_STR(json_get_str(row, "value", NULL), value);
    CHECK_STR(json_get_str(row, "label", NULL), label);
}

TEST(menus, "D1: what each choice of a device lists")
{
    struct devices d;
    open_cards(&d, two);
    json_t *menu = devices_menu(&d, true);
    CHECK_EQ(json_array_size(menu), 4);
    check_row(menu, 0, "cpu", "CPU");
    check_row(menu, 1, "cuda", "NVIDIA CUDA · free 24.0 / 24.0 GiB");
    check_row(menu, 2, "cuda:0", "NVIDIA CUDA #0 · cuda:0 · RTX 4090 · free 24.0 / 24.0 GiB");
    check_row(menu, 3, "cuda:1", "NVIDIA CUDA #1 · cuda:1 · RTX 3060 · free 9.0 / 12.0 GiB");
    json_decref(menu);
    menu = devices_menu(&d, false);
    check_row(menu, 1, "cuda", "NVIDIA CUDA");
    check_row(menu, 3, "cuda:1", "NVIDIA CUDA #1 · cuda:1 · RTX 3060");
    json_decref(menu);
    devices_close(&d);
    open_cards(&d, "RTX 4090:24GiB:sm89");
    menu = devices_menu(&d, false);
    CHECK_EQ(json_array_size(menu), 2);
    check_row(menu, 1, "cuda", "NVIDIA CUDA");
    json_decref(menu);
    devices_close(&d);
}

/* ---- NVML ---- */

static int calls_left = 1000; /* entries answer until it is 0 */

static int answer(void)
{
    return calls_left-- > 0 ? 0 : 999;
}

static int fake_init(void)
{
    return answer();
}

static int fake_driver(char *out, unsigned cap)
{
    (void)snprintf(out, cap, "550.54.15");
    return answer();
}

static int fake_count(unsigned *n)
{
    *n = 2;
    return answer();
}

static int fake_handle(unsigned i, void **handle)
{
    static int card[2];
    *handle = &card[i];
    card[i] = (int)i;
    return answer();
}

static int fake_name(void *handle, char *out, unsigned cap)
{
    (void)snprintf(out, cap, "%s", *(int *)handle ? "Tesla T4" : "NVIDIA H200");
    return answer();
}

static int fake_uuid(void *handle, char *out, unsigned cap)
{
    (void)snprintf(out, cap, "GPU-0000000%d", *(int *)handle);
    return answer();
}

static int fake_memory(void *handle, struct nvml_memory *out)
{
    (void)handle;
    *out = (struct nvml_memory){16ull << 30, 10ull << 30, 6ull << 30};
    return answer();
}

static int fake_capability(void *handle, int *major, int *minor)
{
    *major = *(int *)handle ? 7 : 9;
    *minor = *(int *)handle ? 5 : 0;
    return answer();
}

static int fake_processes(void *handle, unsigned *n, struct nvml_process *out)
{
    (void)handle;
    *n = 2;
    out[0] = (struct nvml_process){.pid = 4711, .used = 5ull << 30};
    out[1] = (struct nvml_process){.pid = 4712, .used = ~0ull};
    return answer();
}

static const struct nvml_api fake = {
    .init = fake_init,
    .shutdown = fake_init,
    .driver = fake_driver,
    .count = fake_count,
    .handle = fake_handle,
    .name = fake_name,
    .uuid = fake_uuid,
    .memory = fake_memory,
    .capability = fake_capability,
    .processes = fake_processes};

static void close_cards(struct devices *d)
{
    for (int i = 1; i < d->n; i++)
        d->list[i].ops->close(&d->list[i]);
}

TEST(nvml_cards, "D1: cards, memory and processes through the driver's library")
{
    struct devices d = {.n = 1};
    struct device_memory m;
    struct device_holder h[8];
    struct err e;
    CHECK_EQ(nvml_list(&fake, &d), 2);
    CHECK_STR(d.driver, "550.54.15");
    CHECK_STR(d.list[1].name, "NVIDIA H200");
    CHECK_STR(d.list[2].id, "cuda:1");
    CHECK_STR(d.list[2].uuid, "GPU-00000001");
    CHECK_EQ(d.list[1].compute_capability, 90);
    CHECK_EQ(d.list[2].compute_capability, 75);
    CHECK_EQ(d.list[2].capacity_bytes, 16ll << 30);
    CHECK(!d.list[1].runs && !d.list[1].simulated);
    CHECK_OK(device_memory(&d.list[1], &m, &e), &e);
    CHECK_EQ(m.free_bytes, 10ll << 30);
    CHECK_EQ(device_holders(&d.list[1], h, 8), 2);
    CHECK(h[0].pid == 4711 && h[0].held_bytes == 5ll << 30 && h[1].held_bytes == -1);
    CHECK_EQ(device_holders(&d.list[1], h, 1), 1);
    close_cards(&d);
}

TEST(nvml_silent, "D1: a driver that stops answering is never an error")
{
    struct devices *d = calloc(1, sizeof *d);
    CHECK(d);
    for (int n = 0; n < 30; n++) {
        *d = (struct devices){.n = 1};
        calls_left = n;
        int found = nvml_list(&fake, d);
        CHECK(found >= 0 && found <= 2 && d->n == 1 + found && d->cards_n == found);
        close_cards(d);
    }
    free(d);
}

TEST(nvml_absent, "D4: no library, no cards")
{
    struct nvml_api api;
    CHECK(!nvml_load("/nowhere/libnvidia-ml.so.1", &api));
    CHECK(!nvml_load("libc.so.6", &api)); /* a library, but another one */
}

TEST(nvml_library, "D1: the library is loaded when it is there, with every entry by its name")
{
    struct nvml_api api;
    struct devices d = {.n = 1};
    struct device_holder h[2];
    CHECK(nvml_load(SNUG_BINARY_DIR "/tests/libnvidia-ml.so.1", &api));
    CHECK_EQ(nvml_list(&api, &d), 1);
    CHECK_STR(d.list[1].name, "Stand-in H200");
    CHECK(d.list[1].compute_capability == 90 && d.list[1].capacity_bytes == 139ll << 30);
    CHECK(device_holders(&d.list[1], h, 2) == 1 && h[0].pid == 4711);
    close_cards(&d);
    nvml_unload(&api);
}

/* Three cards, of which a run gets the third and the first. */
static void open_selection(struct devices *d)
{
    struct err e;
    open_cards(d, "A:8GiB:sm89:uuid=GPU-a, B:8GiB:sm89:uuid=GPU-b, C:8GiB:sm89:uuid=GPU-c");
    const struct device_pick picks[] = {{"cuda:2", "GPU-c"}, {"cuda:0", ""}};
    CHECK_OK(devices_select(d, picks, 2, &e), &e);
}

TEST(cards_are_renumbered, "R6: a run's cards are cuda:0, cuda:1, ... in the order given")
{
    struct devices d;
    open_selection(&d);
    CHECK_EQ(d.n, 3);
    CHECK_EQ(d.cards_n, 2);
    CHECK_STR(d.list[1].id, "cuda:0");
    CHECK_STR(d.list[1].machine_id, "cuda:2");
    CHECK_STR(d.list[1].uuid, "GPU-c");
    CHECK_STR(d.list[2].id, "cuda:1");
    CHECK_STR(d.list[2].machine_id, "cuda:0");
    struct device_asker who = {.node = "train", .type = "TrainingLoop", .param = "device"};
    struct device_choice c = devices_choose(&d, "cuda:1", NULL, &who);
    CHECK(!c.fell_back);
    CHECK_STR(c.device->uuid, "GPU-a");
    devices_close(&d);
}

TEST(
    missing_card_of_a_selection,
    "R6: a node that names a card the run lacks says which cards the run has")
{
    struct devices d;
    struct err e;
    struct device_asker who = {.node = "train", .type = "TrainingLoop", .param = "device"};
    open_cards(&d, two);
    const struct device_pick one = {"cuda:1", NULL};
    CHECK_OK(devices_select(&d, &one, 1, &e), &e);
    struct device_choice c = devices_choose(&d, "cuda:1", NULL, &who);
    CHECK_STR(
        c.warning,
        "Node train (TrainingLoop) is set to device cuda:1; this run has 1 card (cuda:0 = the "
        "worker's cuda:1), so when it executes, it runs on cuda:0.");
    devices_close(&d);
    open_selection(&d);
    c = devices_choose(&d, "cuda:7", NULL, &who);
    CHECK_STR(
        c.warning,
        "Node train (TrainingLoop) is set to device cuda:7; this run has 2 cards (cuda:0 = the "
        "worker's cuda:2, cuda:1 = the worker's cuda:0), so when it executes, it runs on cuda:0.");
    devices_close(&d);
    open_cards(&d, two);
    const struct device_pick cpu = {"cpu", ""};
    CHECK_OK(devices_select(&d, &cpu, 1, &e), &e);
    c = devices_choose(&d, "cuda:1", NULL, &who);
    CHECK_STR(
        c.warning, "Node train (TrainingLoop) is set to device cuda:1; this run has no card, so "
                   "when it executes, it runs on the CPU.");
    devices_close(&d);
}

TEST(selection_refuses, "a card that is gone, or named twice, is an error")
{
    struct devices d;
    struct err e;
    open_cards(&d, two);
    const struct device_pick gone = {"cuda:1", "GPU-other"}, missing = {"cuda:2", ""},
                             twice[] = {{"cuda:1", ""}, {"cuda:1", ""}};
    CHECK_EQ(devices_select(&d, &gone, 1, &e), ST_NOT_FOUND);
    CHECK_EQ(devices_select(&d, &missing, 1, &e), ST_NOT_FOUND);
    CHECK_EQ(devices_select(&d, twice, 2, &e), ST_INVALID);
    CHECK_EQ(d.n, 3);
    devices_close(&d);
}
