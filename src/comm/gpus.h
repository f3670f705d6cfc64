/* What the GPUs of a domain are joined by, found out once. */
#ifndef PHASOR_COMM_GPUS_H
#define PHASOR_COMM_GPUS_H

#include "base/log.h"
#include "comm/domain.h"

/* Of a domain whose devices are there, of any kind: opens NCCL where each rank has a GPU of its own
 * and no links are to be slow, and tells `log` which it is; lets copies between its GPUs go
 * directly where they can, and tries that. Where NCCL joins them, which then makes all copies
 * between them, those alone are tried that are no farther apart on PCI than it goes directly by
 * itself (through switches): what lies between others may well be broken, and is in nobody's way.
 * NCCL_P2P_DISABLE=1 and NCCL_P2P_LEVEL, which whoever has a machine on which GPUs cannot reach
 * each other sets for NCCL, hold for copies, too: those between GPUs that are farther apart than
 * the level (PIX, PXB, PHB, SYS) go through the host, and with another one all. What a failure
 * leaves, gpus_part frees. */
enum status gpus_join(struct comm_domain *domain, const struct log_sink *log,
                      struct error *err) MUST_CHECK;
void gpus_part(struct comm_domain *domain);

/* Of a group that NCCL is about to join: two GPUs it joins directly, on a processor of AMD, however
 * far apart they are, and those are tried here. */
enum status gpus_reach_group(const struct comm_domain *domain, const int *ranks, int count,
                             struct error *err) MUST_CHECK;

/* Whether NCCL joins so many of its ranks. */
bool gpus_have_nccl(const struct comm_domain *domain, int member_count);

#endif
