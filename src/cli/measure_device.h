/* measure_device.h: a GPU for commands that measure a model on it (bench step, tune). */
#ifndef WEIR_CLI_MEASURE_DEVICE_H
#define WEIR_CLI_MEASURE_DEVICE_H

#include "load/modules.h"
#include "ops/ops.h"

/* What the options --device, --device-library, --device-modules, --dense-dtype, --activation-dtype
 * (0 where there is none) and --kv-cache-dtype say, by the number of the choice. */
struct measure_device {
    int device;
    const char *library, *modules;
    int dense_dtype, activation_dtype, kv_dtype;
};

/* Opens it and says the format of histories there. With --device cpu: nothing, *out is NULL and *kv
 * as it was. WEIR_BAD_VALUE: an option that a device does not take; what modules_open says. */
weir_status measure_device_open(const struct measure_device *m, enum dtype *kv,
                                struct gpu_device **out, weir_error *err);

#endif
