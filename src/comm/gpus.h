/* What the GPUs of a domain are joined by, found out once. */
#ifndef PHASOR_COMM_GPUS_H
#define PHASOR_COMM_GPUS_H

#include "base/log.h"
#include "comm/domain.h"

/* Of a domain whose devices are there, of any kind: opens NCCL where there are several GPUs, and
 * tells `log` which it is. What a failure leaves, gpus_part frees. */
enum status gpus_join(struct comm_domain *domain, const struct log_sink *log,
                      struct error *err) MUST_CHECK;
void gpus_part(struct comm_domain *domain);

/* Whether NCCL can join these ranks: of two on one GPU it knows nothing. */
bool gpus_have_nccl(const struct comm_domain *domain, const int *ranks, int member_count);

#endif
