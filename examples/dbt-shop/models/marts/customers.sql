select c.customer_id, c.name, c.country, coalesce(o.orders, 0) as orders, o.first_order
from {{ ref('stg_customers') }} c left join {{ ref('int_customer_orders') }} o using (customer_id)
