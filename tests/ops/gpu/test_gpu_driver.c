/* test_gpu_driver.c: drivers are found, asked in the right order and given back; what is missing is
 * said in one line. The drivers are fakes (fake_driver.c). */
#include "tests/test.h"

#include "ops/gpu/driver.h"

#include <dlfcn.h>
#include <unistd.h>

static const char *fake(const char *name) {
    static char path[2][4096];
    static int at;
    const char *dir = getenv("WEIR_FAKE_DRIVERS");
    at = !at;
    snprintf(path[at], sizeof path[at], "%s/fake_%s.so", dir ? dir : ".", name);
    return path[at];
}

static struct gpu_device *device;
static weir_error err;

static void is_unsupported(enum gpu_vendor vendor, uint32_t index, const char *library,
                           const char *says) {
    memset(&err, 0, sizeof err);
    assert_int_equal(gpu_device_open(vendor, index, library, &device, &err), WEIR_UNSUPPORTED);
    assert_null(device);
    assert_non_null(strstr(err.where, library ? library : "lib"));
    if (!strstr(err.message, says))
        fail_msg("%s: %s", err.where, err.message);
}

static void what_is_missing_is_said_in_one_line(void **state) {
    is_unsupported(GPU_CUDA, 0, "/nowhere/libcuda.so.1",
                   "cannot be loaded: no NVIDIA driver is installed");
    is_unsupported(GPU_HIP, 0, "/nowhere/libamdhip64.so",
                   "cannot be loaded: no AMD driver is installed");
    is_unsupported(GPU_CUDA, 0, fake("none"), "finds no device");
    is_unsupported(GPU_CUDA, 1, fake("cuda"), "has no device 1: there are 1");
    is_unsupported(GPU_CUDA, 0, fake("old"), "has no cuLaunchKernelEx: this driver is too old");
    is_unsupported(GPU_CUDA, 0, fake("hip"), "has no cuInit");
}

/* As fake_driver.c has it. */
struct fake_launch {
    unsigned grid[3], block[3], shared_bytes, attributes;
    uint64_t first_word;
};

static const char *file_of(const char *text) {
    static char path[] = "/tmp/weir-module-XXXXXX";
    strcpy(path + sizeof path - 7, "XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    return path;
}

static void kernels_are_launched(bool cuda, const struct fake_launch *last) {
    void *kernel;
    const char *wrong = file_of("no such thing");
    assert_int_equal(gpu_module_load(device, wrong, &err), WEIR_BAD_FILE);
    assert_non_null(strstr(err.message, "is no module for Fake 1 (module: error 200, bad image)"));
    unlink(wrong);
    assert_int_equal(gpu_module_load(device, "/nowhere/norm.cubin", &err), WEIR_BAD_FILE);
    const char *right = file_of("module of kernels");
    assert_int_equal(gpu_module_load(device, right, &err), WEIR_OK);
    unlink(right);
    assert_int_equal(gpu_kernel_find(device, "weir_absent", 0, &kernel, &err), WEIR_UNSUPPORTED);
    assert_string_equal(err.where, "weir_absent");
    assert_int_equal(gpu_kernel_find(device, "weir_norm", 100000, &kernel, &err), WEIR_OK);
    struct gpu_launch l = {GPU_weir_norm, 5, 3, 256, 1024};
    struct gpu_norm record = {.x = (const float *)(uintptr_t)0x123456789};
    for (int early = 0; early < 2; early++) {
        assert_int_equal(gpu_kernel_launch(device, kernel, &l, &record, early, &err), WEIR_OK);
        const unsigned want[] = {5, 3, 1, 256, 1, 1, 1024, cuda && early};
        assert_memory_equal(last, want, sizeof want);
        assert_true(last->first_word == 0x123456789);
    }
}

static void memory_graphs_and_time_work(void) {
    uint64_t a, b;
    char text[16] = "";
    struct gpu_graph *graph;
    double us;
    assert_int_equal(gpu_memory_take(device, 16, &a, &err), WEIR_OK);
    assert_int_equal(gpu_memory_take(device, 16, &b, &err), WEIR_OK);
    assert_int_equal(gpu_memory_take(device, (size_t)2 << 30, &b, &err), WEIR_NO_MEMORY);
    assert_int_equal(gpu_fill(device, b, 'x', 16, &err), WEIR_OK);
    assert_int_equal(gpu_copy_in(device, a, "0123456789abcde", 16, &err), WEIR_OK);
    assert_int_equal(gpu_copy_on(device, b, a, 8, &err), WEIR_OK);
    assert_int_equal(gpu_copy_out(device, text, b, 16, &err), WEIR_OK);
    assert_int_equal(gpu_wait(device, &err), WEIR_OK);
    assert_memory_equal(text, "01234567xxxxxxxx", 16);
    gpu_memory_free(device, a);
    gpu_memory_free(device, b);
    assert_int_equal(gpu_graph_begin(device, &err), WEIR_OK);
    assert_int_equal(gpu_graph_end(device, &graph, &err), WEIR_OK);
    assert_int_equal(gpu_mark(device, 0, &err), WEIR_OK);
    assert_int_equal(gpu_graph_launch(device, graph, &err), WEIR_OK);
    assert_int_equal(gpu_mark(device, 1, &err), WEIR_OK);
    assert_int_equal(gpu_marked_us(device, &us, &err), WEIR_OK);
    assert_true(us == 250);
    gpu_graph_free(device, graph);
}

static void both_drivers_serve_and_get_everything_back(void **state) {
    for (int hip = 0; hip < 2; hip++) {
        const char *path = fake(hip ? "hip" : "cuda");
        void *library = dlopen(path, RTLD_NOW); /* keeps its counters beyond the device */
        assert_non_null(library);
        const int *open = dlsym(library, "fake_open");
        const int *shared_bytes = dlsym(library, "fake_shared_bytes");
        assert_int_equal(gpu_device_open(hip ? GPU_HIP : GPU_CUDA, 0, path, &device, &err),
                         WEIR_OK);
        const struct gpu_facts *facts = gpu_device_facts(device);
        assert_string_equal(facts->name, "Fake 1");
        assert_int_equal(facts->multiprocessors, 132);
        assert_int_equal(facts->wave, hip ? 64 : 32);
        assert_int_equal(facts->major, hip ? 0 : 9);
        assert_int_equal(facts->clock_mhz, 1980);
        assert_int_equal(facts->memory_bytes, 1 << 30);
        assert_int_equal(facts->memory_left, 3 << 28);
        kernels_are_launched(!hip, dlsym(library, "fake_last"));
        assert_int_equal(*shared_bytes, hip ? 0 : 100000);
        memory_graphs_and_time_work();
        assert_true(*open > 0);
        gpu_device_close(device);
        assert_int_equal(*open, 0);
        dlclose(library);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_is_said_in_one_line),
        cmocka_unit_test(both_drivers_serve_and_get_everything_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
