/* modules.h: a GPU with the kernels of weir on it. */
#ifndef WEIR_LOAD_MODULES_H
#define WEIR_LOAD_MODULES_H

#include "ops/gpu/driver.h"

/* Opens device 0 of the vendor and loads the modules of kernels: files *.cubin (CUDA) or *.hsaco
 * (HIP) of `dir`; NULL: lib/weir beside the program's own directory, or where the build puts them.
 * `library`: the driver's, NULL: the usual; both are copied or not needed afterwards but `library`,
 * which must live as long as the device.
 * WEIR_UNSUPPORTED: no driver, no device, no modules; WEIR_BAD_FILE: a module of another device. */
weir_status modules_open(enum gpu_vendor vendor, const char *library, const char *dir,
                         struct gpu_device **out, weir_error *err);

#endif
