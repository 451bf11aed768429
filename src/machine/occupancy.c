/* occupancy.c: counts of workgroups and of local memory. Called by rules of dispatch and plans. */
#include "machine/occupancy.h"

uint32_t occupancy_workgroups(uint32_t heads, uint32_t columns, uint32_t tile_columns) {
    return heads * ((columns + tile_columns - 1) / tile_columns);
}

double occupancy_share(const struct occupancy_device *d, uint32_t workgroups) {
    return workgroups < d->compute_units ? (double)workgroups / d->compute_units : 1;
}

struct occupancy_local occupancy_local(const struct occupancy_device *d, uint32_t request_bytes) {
    const uint32_t request = request_bytes ? request_bytes + d->local_reserved_bytes : 0;
    struct occupancy_local l = {.units = (request + d->local_unit_bytes - 1) / d->local_unit_bytes};
    l.bytes = l.units * d->local_unit_bytes;
    l.resident = l.bytes ? d->local_bytes / l.bytes : 0;
    return l;
}

uint32_t occupancy_local_budget(const struct occupancy_device *d, uint32_t resident) {
    const uint32_t share =
        resident ? d->local_bytes / resident / d->local_unit_bytes * d->local_unit_bytes : 0;
    return share > d->local_reserved_bytes ? share - d->local_reserved_bytes : 0;
}

uint32_t occupancy_triangle(uint32_t n) {
    return n * (n + 1) / 2;
}

uint32_t occupancy_padded(uint32_t n, uint32_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}
