/* place.h: which memory node each member of a thread team computes on, and where memory lies that
 * all of them use. On a machine with one node nothing here does anything. */
#ifndef WEIR_MACHINE_PLACE_H
#define WEIR_MACHINE_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PLACE_NODES = 64 };

/* The decision, of which tests have their own: `cores[k]` of node k; members take the nodes in
 * order, in proportion to their cores, so that neighbouring shares of an operation lie on one node.
 * Writes the node of each member. */
void place_share(const uint32_t *cores, uint32_t nodes, uint32_t *node_of, uint32_t members);

struct place;

/* Reads the machine (only cores this process may use count); `synthetic`: a description of another
 * one in hwloc's words ("numa:2 core:4 pu:1"), NULL otherwise. NULL without memory, or where the
 * machine cannot be read: then nothing is placed. */
struct place *place_open(uint32_t members, const char *synthetic);
void place_close(struct place *p);
/* Nodes that members were given; 1 for NULL. */
uint32_t place_nodes(const struct place *p);
uint32_t place_node_of(const struct place *p, uint32_t member);

/* A function for team_run, arg a struct place: keeps each member on the cores of its node. What it
 * touches first from then on is there as well. It may still move between the node's cores, away
 * from a neighbour. */
void place_member(void *place, uint32_t member);
/* Spreads memory that has not been touched page by page over the nodes in use. False: the system
 * refused, and pages lie where they are touched first. */
bool place_spread(const struct place *p, void *data, size_t bytes);

#endif
