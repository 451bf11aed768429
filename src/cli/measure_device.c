/* measure_device.c: see measure_device.h. */
#include "cli/measure_device.h"

#include "cli/engine_args.h"

weir_status measure_device_open(const struct measure_device *m, enum dtype *kv,
                                struct gpu_device **out, weir_error *err) {
    enum { AUTO, F32, BF16 }; /* choices of --activation-dtype and --kv-cache-dtype */
    *out = NULL;
    if (m->device == ENGINE_DEVICE_CPU)
        return WEIR_OK;
    if (m->dense_dtype == DENSE_INT8)
        return weir_fail(err, WEIR_BAD_VALUE, "--dense-dtype",
                         "a device takes dense weights as bf16 or fp8");
    if (m->activation_dtype != AUTO && m->activation_dtype != BF16)
        return weir_fail(err, WEIR_BAD_VALUE, "--activation-dtype",
                         "activations on a device are bf16");
    if (m->kv_dtype == F32)
        return weir_fail(err, WEIR_BAD_VALUE, "--kv-cache-dtype",
                         "history on a device is bf16 or fp8");
    *kv = m->kv_dtype == AUTO ? DTYPE_BF16 : *kv;
    return modules_open(m->device == ENGINE_DEVICE_CUDA ? GPU_CUDA : GPU_HIP, m->library,
                        m->modules, out, err);
}
