select o.order_id, o.customer_id, o.ordered_on, o.status, coalesce(a.amount, 0) as amount
from {{ ref('stg_orders') }} o left join {{ ref('int_order_amounts') }} a using (order_id)
