/* modules.c: see modules.h. */
#include "load/modules.h"

#include "base/error.h"
#include "base/log.h"
#include "base/plural.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *ending_of(enum gpu_vendor vendor) {
    return vendor == GPU_CUDA ? ".cubin" : ".hsaco";
}

static bool ends_with(const char *name, const char *ending) {
    size_t n = strlen(name), m = strlen(ending);
    return n > m && !strcmp(name + n - m, ending);
}

/* Loads what is in `dir`; *n: how many modules. No such directory: none. */
static weir_status load_all(struct gpu_device *d, const char *dir, const char *ending, uint32_t *n,
                            weir_error *err) {
    DIR *files = opendir(dir);
    weir_status st = WEIR_OK;
    *n = 0;
    if (!files)
        return WEIR_OK;
    for (const struct dirent *f; !st && (f = readdir(files));) {
        char path[PATH_MAX];
        if (!ends_with(f->d_name, ending))
            continue;
        if (snprintf(path, sizeof path, "%s/%s", dir, f->d_name) >= (int)sizeof path)
            continue;
        st = gpu_module_load(d, path, err);
        *n += !st;
    }
    closedir(files);
    return st;
}

/* Directory `i` of those where the modules of this program may be, or false. */
static bool usual_place(int i, char *out, size_t room) {
    static const char *const beside[] = {"../lib/weir", "../lib64/weir",
                                         "../lib/x86_64-linux-gnu/weir",
                                         "../lib/aarch64-linux-gnu/weir", "src/ops/gpu/kernels"};
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (i >= (int)(sizeof beside / sizeof *beside) || n <= 0)
        return false;
    self[n] = 0;
    char *slash = strrchr(self, '/');
    if (slash)
        *slash = 0;
    return snprintf(out, room, "%s/%s", self, beside[i]) < (int)room;
}

static weir_status load_modules(struct gpu_device *d, const char *dir, const char *ending,
                                weir_error *err) {
    uint32_t n = 0;
    char place[PATH_MAX] = "";
    weir_status st = WEIR_OK;
    if (dir)
        st = load_all(d, dir, ending, &n, err);
    for (int i = 0; !dir && !st && !n && usual_place(i, place, sizeof place); i++)
        st = load_all(d, place, ending, &n, err);
    if (st)
        return st;
    if (!n)
        return weir_fail(err, WEIR_UNSUPPORTED, dir ? dir : "lib/weir",
                         "holds no modules of kernels (*%s): docs/gpu.md says how they are built",
                         ending);
    const struct gpu_facts *f = gpu_device_facts(d);
    log_line(LOG_INFO, "%s, %" PRIu32 " multiprocessors, %zu MiB; %" PRIu32 " %s from %s", f->name,
             f->multiprocessors, f->memory_bytes >> 20, n, plural(n, "module", "modules"),
             dir ? dir : place);
    return WEIR_OK;
}

weir_status modules_open(enum gpu_vendor vendor, const char *library, const char *dir,
                         struct gpu_device **out, weir_error *err) {
    weir_status st = gpu_device_open(vendor, 0, library, out, err);
    if (st)
        return st;
    st = load_modules(*out, dir, ending_of(vendor), err);
    if (st) {
        gpu_device_close(*out);
        *out = NULL;
    }
    return st;
}
