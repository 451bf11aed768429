/* occupancy.h: how well a kernel's shape fills a device: workgroups, local memory, padding. Counts
 * follow from shapes and from what the device's documents say of its units. */
#ifndef WEIR_MACHINE_OCCUPANCY_H
#define WEIR_MACHINE_OCCUPANCY_H

#include <stdint.h>

struct occupancy_device {
    uint32_t compute_units;
    uint32_t local_bytes;          /* local memory (LDS, shared) of one unit */
    uint32_t local_unit_bytes;     /* is given out in pieces of */
    uint32_t local_reserved_bytes; /* are taken beside what a workgroup asks for */
};

/* Workgroups of a kernel that cuts the value columns of each head into tiles. */
uint32_t occupancy_workgroups(uint32_t heads, uint32_t columns, uint32_t tile_columns);
/* Share of the device's units that get one; at most 1. */
double occupancy_share(const struct occupancy_device *d, uint32_t workgroups);

struct occupancy_local {
    uint32_t units, bytes; /* of one workgroup, rounded up to whole pieces */
    uint32_t resident;     /* workgroups that fit beside each other in a compute unit; 0 for a
                              kernel that asks for none: nothing here limits it */
};
struct occupancy_local occupancy_local(const struct occupancy_device *d, uint32_t request_bytes);
/* The most that a workgroup may ask for if so many are to fit; 0: so many never do. */
uint32_t occupancy_local_budget(const struct occupancy_device *d, uint32_t resident);

/* Blocks of the lower triangle of an n x n grid, the diagonal included. */
uint32_t occupancy_triangle(uint32_t n);
/* `n` rounded up to a multiple. */
uint32_t occupancy_padded(uint32_t n, uint32_t multiple);

#endif
