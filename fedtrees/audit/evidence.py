"""What the audit takes from the attacks: everything that `fedtrees.audit` imports of them."""

from fedtrees.attacks.shared_trees.hessians import AGREES as AGREES
from fedtrees.attacks.shared_trees.hessians import FLOAT32 as FLOAT32
from fedtrees.attacks.shared_trees.hessians import Splits as Splits
from fedtrees.attacks.shared_trees.hessians import hessians_from_gains as hessians_from_gains
from fedtrees.attacks.shared_trees.hessians import pieces as pieces
from fedtrees.attacks.shared_trees.start_of_values import PER_ROW as PER_ROW
from fedtrees.attacks.shared_trees.start_of_values import VALUE_ERROR as VALUE_ERROR
from fedtrees.attacks.shared_trees.start_of_values import LeafValues as LeafValues
from fedtrees.attacks.shared_trees.start_of_values import shares_of_values as shares_of_values
from fedtrees.attacks.shared_trees.start_of_values import subset_sums as subset_sums
from fedtrees.attacks.shared_trees.start_of_values import union as union
from fedtrees.attacks.timberstrike import Evidence as Evidence
from fedtrees.attacks.timberstrike import Options as Options
from fedtrees.attacks.timberstrike import reconstruct as reconstruct
from fedtrees.attacks.timberstrike.values import positives_of_value as positives_of_value
