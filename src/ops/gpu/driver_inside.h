/* driver_inside.h: what the files that speak with a driver share. */
#ifndef WEIR_OPS_GPU_DRIVER_INSIDE_H
#define WEIR_OPS_GPU_DRIVER_INSIDE_H

#include "ops/gpu/driver.h"

#include "base/error.h"

enum { MODULES_MOST = 32 };

/* What the drivers call results, contexts, streams and so on are numbers and pointers to us. */
struct api {
    int (*init)(unsigned);
    int (*count)(int *);
    int (*get)(int *, int);
    int (*name)(char *, int, int);
    int (*attribute)(int *, int, int);
    int (*total)(size_t *, int);
    int (*left)(size_t *, size_t *);
    int (*take)(uint64_t *, size_t);
    int (*free)(uint64_t);
    int (*copy_in)(uint64_t, const void *, size_t, void *);
    int (*copy_out)(void *, uint64_t, size_t, void *);
    int (*copy_on)(uint64_t, uint64_t, size_t, void *);
    int (*fill)(uint64_t, unsigned char, size_t, void *);
    int (*stream_make)(void **, unsigned);
    int (*stream_wait)(void *);
    int (*stream_free)(void *);
    int (*capture_begin)(void *, int);
    int (*capture_end)(void *, void **);
    int (*graph_make)(void **, void *, unsigned long long);
    int (*graph_launch)(void *, void *);
    int (*graph_free)(void *);
    int (*capture_free)(void *);
    int (*event_make)(void **, unsigned);
    int (*event_record)(void *, void *);
    int (*event_wait)(void *);
    int (*event_elapsed)(float *, void *, void *);
    int (*event_free)(void *);
    int (*host_take)(void **, size_t, unsigned);
    int (*host_free)(void *);
    int (*module_load)(void **, const void *);
    int (*module_find)(void **, void *, const char *);
    int (*module_free)(void *);
    /* CUDA alone */
    int (*context_retain)(void **, int);
    int (*context_set)(void *);
    int (*context_release)(int);
    int (*function_set)(void *, int, int);
    int (*launch)(const void *, void *, void **, void **);
    int (*error_text)(int, const char **);
    /* HIP alone */
    int (*device_set)(int);
    int (*launch_hip)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      void *, void **, void **);
    const char *(*error_text_hip)(int);
};

struct gpu_device {
    enum gpu_vendor vendor;
    struct api api;
    void *library;
    const char *library_name;
    int device;
    void *context, *stream, *mark[GPU_MARKS], *module[MODULES_MOST];
    uint32_t n_modules;
    struct gpu_facts facts;
};

/* WEIR_OK, or what the driver's number says happened to `what`. */
weir_status gpu_check(struct gpu_device *d, int code, const char *what, weir_error *err);

#endif
