/* emulated.h: devices that the emulator stands for, for tests of what runs on one. On a machine
 * with a GPU of NVIDIA the same tests run on that: WEIR_TEST_MODULES=DIR names the modules for it.
 */
#ifndef WEIR_TESTS_OPS_GPU_EMULATED_H
#define WEIR_TESTS_OPS_GPU_EMULATED_H

#include "tests/test.h"

#include "load/modules.h"

#include <unistd.h>

static const struct {
    enum gpu_vendor vendor;
    const char *library, *module;
} emulated_vendors[] = {{GPU_CUDA, "emulated_cuda.so", "all.cubin"},
                        {GPU_HIP, "emulated_hip.so", "all.hsaco"}};
enum { EMULATED_VENDORS = 2 };

static char emulated_modules[4000], emulated_library[4096];

/* NULL: the emulator. */
static inline const char *real_modules(void) {
    return getenv("WEIR_TEST_MODULES");
}

static inline enum gpu_vendor emulated_vendor(int v) {
    return real_modules() ? GPU_CUDA : emulated_vendors[v].vendor;
}

static inline const char *emulated_file(int v) {
    if (real_modules())
        return "libcuda.so.1";
    const char *dir = getenv("WEIR_FAKE_DRIVERS");
    snprintf(emulated_library, sizeof emulated_library, "%s/%s", dir ? dir : ".",
             emulated_vendors[v].library);
    return emulated_library;
}

static inline struct gpu_device *emulated_open(int v) {
    struct gpu_device *d;
    weir_error err;
    if (modules_open(emulated_vendor(v), emulated_file(v), emulated_modules, &d, &err))
        fail_msg("%s: %s", err.where, err.message);
    return d;
}

/* Before and after all tests of a program: the directory of modules. */
static inline int emulated_begin(void **state) {
    if (real_modules()) {
        snprintf(emulated_modules, sizeof emulated_modules, "%s", real_modules());
        return 0;
    }
    snprintf(emulated_modules, sizeof emulated_modules, "/tmp/weir_modules_XXXXXX");
    assert_non_null(mkdtemp(emulated_modules));
    for (int v = 0; v < EMULATED_VENDORS; v++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", emulated_modules, emulated_vendors[v].module);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs("emulated kernels are in the library of the driver\n", f);
        fclose(f);
    }
    return 0;
}
static inline int emulated_end(void **state) {
    if (real_modules())
        return 0;
    for (int v = 0; v < EMULATED_VENDORS; v++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", emulated_modules, emulated_vendors[v].module);
        unlink(path);
    }
    return rmdir(emulated_modules);
}

#endif
