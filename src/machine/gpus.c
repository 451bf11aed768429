/* gpus.c: reads the specifications of accelerators. Called by the cost command and plans. */
#include "machine/gpus.h"

#include "machine/data.h"

#include <string.h>

static const struct {
    const char *name;
    size_t offset;
    bool required;
} numbers[] = {
#define NUMBER(name, required)                                                                     \
    { #name, offsetof(struct gpu_spec, name), required }
    NUMBER(tdp_watts, true),
    NUMBER(fp4_tflops, false),
    NUMBER(fp8_tflops, false),
    NUMBER(bf16_tflops, true),
    NUMBER(memory_gb, true),
    NUMBER(memory_tb_per_s, true),
    NUMBER(scale_up_gb_per_s, true),
    NUMBER(scale_up_gpus, true),
    NUMBER(scale_out_gbit_per_s, true),
    NUMBER(compute_units, false),
    NUMBER(wave_lanes, false),
    NUMBER(local_bytes, false),
    NUMBER(local_unit_bytes, false),
    NUMBER(local_reserved_bytes, false),
#undef NUMBER
};

static const char members[] = "tdp_watts, fp4_tflops, fp8_tflops, bf16_tflops, memory_gb, "
                              "memory_tb_per_s, scale_up_gb_per_s, scale_up_gpus, "
                              "scale_out_gbit_per_s, architecture, compute_units, wave_lanes, "
                              "local_bytes, local_unit_bytes, local_reserved_bytes, note";

static weir_status read_one(const json_t *o, const char *path, const char *name,
                            struct gpu_spec *out, weir_error *err) {
    char scope[64];
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(scope, sizeof scope, "machines.%s.", name);
    weir_status s = data_no_others(o, path, scope, members, err);
    if (s)
        return s;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double *to = (double *)(void *)((char *)out + numbers[i].offset);
        s = data_number(o, path, scope, numbers[i].name, numbers[i].required, 1e9, to, err);
        if (s)
            return s;
    }
    s = data_text(o, path, scope, "architecture", false, out->architecture,
                  sizeof out->architecture, err);
    return s ? s : data_text(o, path, scope, "note", false, out->note, sizeof out->note, err);
}

weir_status gpu_specs_open(struct gpu_spec **out, size_t *n, weir_error *err) {
    static const char path[] = "gpus.json";
    size_t bytes;
    const char *text = data_gpus(&bytes), *name;
    json_t *o, *value;
    const json_t *machines;
    *out = NULL;
    *n = 0;
    weir_status s = data_parse(text, bytes, path, &o, err);
    if (s)
        return s;
    s = data_no_others(o, path, "", "source, machines", err);
    if (!s)
        s = data_machines(o, path, &machines, err);
    struct gpu_spec *list = s ? NULL : calloc(json_object_size(machines), sizeof *list);
    if (!s && !list)
        s = weir_fail(err, WEIR_NO_MEMORY, path, "no memory for its rows");
    if (!s)
        json_object_foreach((json_t *)(uintptr_t)machines, name, value) if (!s) s =
            read_one(value, path, name, &list[(*n)++], err);
    json_decref(o);
    if (s) {
        free(list);
        *n = 0;
        return s;
    }
    *out = list;
    return WEIR_OK;
}

weir_status gpu_spec_find(const char *name, struct gpu_spec *out, weir_error *err) {
    struct gpu_spec *list;
    size_t n;
    char names[256] = "";
    weir_status s = gpu_specs_open(&list, &n, err);
    if (s)
        return s;
    size_t i = 0;
    while (i < n && strcasecmp(list[i].name, name))
        i++;
    if (i < n)
        *out = list[i];
    for (size_t k = 0, at = 0; k < n && at < sizeof names; k++)
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", k ? ", " : "", list[k].name);
    free(list);
    return i < n ? WEIR_OK
                 : weir_fail(err, WEIR_BAD_VALUE, "machine", "'%.80s' is none of %s", name, names);
}
