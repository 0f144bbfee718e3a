select g.ordered_on, sum(a.amount) as revenue
from {{ ref('int_good_orders') }} g join {{ ref('int_order_amounts') }} a using (order_id) group by g.ordered_on
