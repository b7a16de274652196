"""The implicit head as the paper computes it, to compare costs with."""

from torch import Tensor

from guided_collapse.geometry.nearest import unit_frobenius_norm
from guided_collapse.heads.nearest import NearestETFHead
from guided_collapse.paper.problem import ProximalProblem
from guided_collapse.paper.route import basis_by_paper_route
from guided_collapse.paper.trust_region import solve_by_trust_region


class PaperRouteHead(NearestETFHead):
    """The nearest frame by the trust region, differentiated by the dense declarative node."""

    def _solve(self, centred_class_means: Tensor) -> Tensor:
        unit_means = unit_frobenius_norm(centred_class_means)
        anchor = self.basis.detach().clone()
        if int(self.class_means.steps) == 1:
            first = ProximalProblem(unit_means.detach().double().cpu().T, None, self.proximal_weight)
            anchor = solve_by_trust_region(first, anchor.double().cpu()).to(anchor)
        return basis_by_paper_route(unit_means, anchor, self.proximal_weight)
