select c.customer_id, c.name, sum(o.amount) as spent
from {{ ref('customers') }} c join {{ ref('orders') }} o using (customer_id)
group by c.customer_id, c.name order by spent desc limit 3
